from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from lopa.runtime.contract import Instance, LopaError
from lopa.runtime.options import DecodeOptions
from lopa.runtime.prompt import PromptError
from lopa.runtime.sampling import Sampler
from lopa.runtime.scoring import BranchScore
from lopa.runtime.strategies.d2f import D2F
from lopa.runtime.strategies.vanilla import Vanilla

from .manifests import bundle_manifest

BUNDLE = bundle_manifest()  # up to 5 branches, windows of 24 and 40, context 64, blocks of 8


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"strategy": "ar"}, "strategy is 'ar', expected one of: lopa, d2f, vanilla, fast-d"),
        (
            {"window_attention": "causal"},
            "window attention is 'causal', d2f expects one of: full, block-causal",
        ),
        ({"block_size": 0}, "block size is 0, expected 1 or more"),
        ({"max_new_tokens": -4}, "max new tokens is -4, expected 1 or more"),
        ({"strategy": "vanilla", "steps": 0}, "steps is 0, expected 1 or more"),
        ({"add_threshold": 1.1}, "add threshold is 1.1, expected a value from 0 to 1"),
        ({"complete_threshold": -1}, "complete threshold is -1, expected a value from 0 to 1"),
        ({"confidence": math.nan}, "confidence is nan, expected a value from 0 to 1"),
        (
            {"lookahead": 5},
            "lookahead is 5, the bundle has 4 lookahead branches; build with --lookahead 5 for",
        ),
        ({"lookahead": -1}, "lookahead is -1, expected 0 or more"),
        (
            {"score": "best"},
            "score is 'best', expected one of: mean_confidence, bottom_fraction, m",
        ),
        ({"score": "mixed", "score_alpha": 2}, "score alpha is 2, expected a value from 0 to 1"),
        (
            {"score": "mixed", "score_fraction": 0},
            "score fraction is 0, expected a value in (0, 1]",
        ),
        ({"temperature": -1}, "temperature is -1, expected a value from 0 to 1000"),
        ({"temperature": math.inf}, "temperature is inf, expected a value from 0 to 1000"),
        ({"temperature": 1e-9}, "temperature is 1e-09, expected 0 or a value from 0.001 to 1000"),
        ({"score": "mixed", "score_alpha": math.nan}, "score alpha is nan, expected a value from"),
        ({"top_k": 0}, "top k is 0, expected 1 or more"),
        ({"top_p": 1.5}, "top p is 1.5, expected a value in (0, 1]"),
        ({"block_size": 2_000_000}, "block size is 2000000, expected at most 1000000"),
        ({"top_k": 9}, "top k is 9, the bundle keeps 8 candidates per position"),
        ({"top_p": 0}, "top p is 0, expected a value in (0, 1]"),
        ({"measure": "luck"}, "measure is 'luck', expected one of: probability, margin, entropy"),
    ],
)
def test_fault(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(LopaError) as caught:
        DecodeOptions(**settings).check(BUNDLE)
    assert str(caught.value).startswith(fault)


def test_all_faults_at_once() -> None:
    options = DecodeOptions(strategy="ar", steps=0, confidence=2, score="best", top_p=7)
    with pytest.raises(LopaError) as caught:
        options.check(BUNDLE)
    assert len(str(caught.value).split("; ")) == 5


def test_the_limits_themselves_are_allowed() -> None:
    DecodeOptions().check(BUNDLE)
    DecodeOptions(
        lookahead=4,
        block_size=1,
        max_new_tokens=1,
        add_threshold=0,
        complete_threshold=1,
        confidence=0,
        score="mixed",
        score_alpha=0,
        score_fraction=1,
        top_k=8,
        top_p=1,
    ).check(BUNDLE)


@pytest.mark.parametrize("strategy", ["lopa", "d2f"])
def test_a_prompt_must_leave_room_for_its_first_block(strategy: str) -> None:
    options = DecodeOptions(strategy=strategy)
    options.check_prompt(32, BUNDLE)
    with pytest.raises(PromptError) as caught:
        options.check_prompt(33, BUNDLE)
    assert str(caught.value) == (
        f"{strategy} on a prompt of 33 tokens needs a step of 1 branch by 41 window tokens over 41 "
        "cache slots, the bundle has b1-w24-c64-r24, b5-w24-c64-r120, b1-w40-c64-r40; "
        "build with --prefill 41 --context 41"
    )
    with pytest.raises(PromptError, match="needs a step of 1 branch by 41 window tokens"):
        DecodeOptions(strategy=strategy, block_size=9).check_prompt(32, BUNDLE)


def test_a_block_must_fit_the_window_of_all_branches() -> None:
    DecodeOptions(block_size=24).check_prompt(10, BUNDLE)
    DecodeOptions(block_size=30, lookahead=0).check_prompt(10, BUNDLE)
    with pytest.raises(PromptError, match=r"build with --lookahead 4 --window 30 --context 40$"):
        DecodeOptions(block_size=30).check_prompt(10, BUNDLE)


def test_vanilla_needs_room_for_every_token() -> None:
    DecodeOptions(strategy="vanilla", max_new_tokens=30).check_prompt(10, BUNDLE)
    with pytest.raises(PromptError, match="1 branch by 41 window tokens"):
        DecodeOptions(strategy="vanilla", max_new_tokens=31).check_prompt(10, BUNDLE)


def test_a_prompt_longer_than_the_context() -> None:
    short = bundle_manifest((Instance(1, 100, 16, 100),))
    for strategy in ("lopa", "vanilla"):
        with pytest.raises(PromptError) as caught:
            DecodeOptions(strategy=strategy).check_prompt(200, short)
        assert str(caught.value) == (
            "a prompt of 200 tokens leaves no room for an answer, the bundle holds 16 tokens; "
            "shorten it or build with a larger --context"
        )
    with pytest.raises(PromptError, match="build with --prefill 17 --context 17"):
        DecodeOptions(max_new_tokens=8, lookahead=0).check_prompt(9, short)


def test_defaults_come_from_bundle_and_strategy() -> None:
    lopa = DecodeOptions().resolved(10, BUNDLE)
    assert (lopa.lookahead.branches, lopa.strategy) == (4, D2F(8, 6, 0.1, 0.95, 0.9, False))
    d2f = DecodeOptions(strategy="d2f", max_new_tokens=16).resolved(10, BUNDLE)
    assert (d2f.lookahead.branches, d2f.strategy) == (0, D2F(8, 2, 0.1, 0.95, 0.9, True))
    vanilla = DecodeOptions(strategy="vanilla", lookahead=3).resolved(10, BUNDLE)
    assert (vanilla.lookahead.branches, vanilla.strategy) == (0, Vanilla(54, 54, 54, "dream"))
    narrow = bundle_manifest((Instance(3, 8, 1000, 24),))
    assert DecodeOptions().resolved(10, narrow).lookahead.branches == 2
    assert DecodeOptions().new_tokens(10, narrow) == 256
    given = DecodeOptions(lookahead=1, window_attention="block-causal", block_size=4)
    plan = given.resolved(10, BUNDLE)
    assert (plan.lookahead.branches, plan.strategy) == (1, D2F(4, 13, 0.1, 0.95, 0.9, True))


def test_parts_get_their_settings() -> None:
    options = DecodeOptions(
        score="mixed",
        score_alpha=0.25,
        score_fraction=0.75,
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        measure="margin",
    )
    plan = options.resolved(10, BUNDLE)
    assert plan.lookahead.score == BranchScore("mixed", 0.25, 0.75)
    assert plan.sampler == Sampler(0.5, 3, 0.9, "margin")


def test_plans_that_differ_in_the_seed_alone_share_a_decoder() -> None:
    assert DecodeOptions(seed=1).resolved(9, BUNDLE) == DecodeOptions(seed=2).resolved(9, BUNDLE)
    assert DecodeOptions(seed=1) != DecodeOptions(seed=2)


def test_attributes_are_the_values_in_force() -> None:
    options = DecodeOptions(strategy="fast-dllm", factor=2.0)
    assert (options.fill, options.factor, options.confidence) == ("factor", 2.0, 0.9)
    assert options.lookahead_shape == "single"  # of another strategy: its default
    assert options.in_force["revision"] == "v1"
    assert "lookahead" not in options.in_force
    with pytest.raises(AttributeError, match="no setting 'colour'"):
        _ = options.colour
    with pytest.raises(LopaError, match=r"^unknown setting colour; known: strategy, base, max_new"):
        DecodeOptions(colour=1)


def test_a_budget_below_one_block_is_refused() -> None:
    manifest = bundle_manifest()
    for strategy in ("d2f", "lopa"):
        options = DecodeOptions(strategy=strategy, block_size=8, max_new_tokens=7)
        with pytest.raises(LopaError, match="max new tokens is 7, expected a whole block of 8"):
            options.check(manifest)
    DecodeOptions(strategy="vanilla", max_new_tokens=7).check(manifest)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"lookahead": "2"}, "lookahead is '2', expected a whole number"),
        ({"lookahead": True}, "lookahead is True, expected a whole number"),
        ({"max_new_tokens": 9.5}, "max new tokens is 9.5, expected a whole number"),
        ({"temperature": "x"}, "temperature is 'x', expected a number"),
        ({"score": ["mixed"]}, "score is ['mixed'], expected a name"),
        ({"strict": 1}, "strict is 1, expected True or False"),
        ({"seed": "1", "top_p": "2"}, "seed is '1', expected a whole number; top p is '2', expect"),
    ],
)
def test_wrong_types(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(LopaError) as caught:
        DecodeOptions(**settings).check(BUNDLE)
    assert str(caught.value).startswith(fault)


def test_numbers_of_other_kinds_are_numbers() -> None:
    settings: dict[str, Any] = {"lookahead": np.int64(2), "confidence": np.float32(0.5)}
    DecodeOptions(**settings, temperature=1).check(BUNDLE)
