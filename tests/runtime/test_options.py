from __future__ import annotations

import math
from typing import Any

import pytest
from lopa.runtime.contract import Instance, LopaError
from lopa.runtime.options import DecodeOptions
from lopa.runtime.prompt import PromptError
from lopa.runtime.sampling import Sampler
from lopa.runtime.scoring import BranchScore

from .manifests import bundle_manifest

BUNDLE = bundle_manifest()  # up to 5 branches, windows of 24 and 40, context 64, blocks of 8


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"strategy": "ar"}, "strategy is 'ar', expected one of ['lopa', 'd2f', 'vanilla'"),
        ({"window_attention": "causal"}, "window attention is 'causal', expected one of ['full',"),
        ({"block_size": 0}, "block size is 0, expected 1 or more"),
        ({"max_new_tokens": -4}, "max new tokens is -4, expected 1 or more"),
        ({"steps": 0}, "steps is 0, expected 1 or more"),
        ({"add_threshold": 1.1}, "add threshold is 1.1, expected a value from 0 to 1"),
        ({"complete_threshold": -1}, "complete threshold is -1, expected a value from 0 to 1"),
        ({"confidence": math.nan}, "confidence is nan, expected a value from 0 to 1"),
        (
            {"lookahead": 5},
            "lookahead is 5, the bundle has 4 lookahead branches; build with --lookahead 5 for",
        ),
        ({"lookahead": -1}, "lookahead is -1, the bundle has 4 lookahead branches"),
        ({"score": "best"}, "score is 'best', expected one of ["),
        ({"score_alpha": 2}, "score alpha is 2, expected a value from 0 to 1"),
        ({"score_fraction": 0}, "score fraction is 0, expected a value in (0, 1]"),
        ({"temperature": -1}, "temperature is -1, expected 0 or more"),
        ({"top_k": 9}, "top-k is 9, the bundle keeps 8 candidates per position"),
        ({"top_p": 0}, "top-p is 0, expected a value in (0, 1]"),
        ({"measure": "luck"}, "measure is 'luck', expected one of"),
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
        steps=1,
        add_threshold=0,
        complete_threshold=1,
        confidence=0,
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
        "the prompt has 33 tokens and needs 8 more for its first step, the bundle holds 40; "
        "shorten it or build with a larger --context / --prefill"
    )
    with pytest.raises(PromptError, match="needs 9 more"):
        DecodeOptions(strategy=strategy, block_size=9).check_prompt(32, BUNDLE)


def test_vanilla_needs_room_for_every_token() -> None:
    DecodeOptions(strategy="vanilla", max_new_tokens=30).check_prompt(10, BUNDLE)
    with pytest.raises(PromptError, match="has 10 tokens and needs 31 more"):
        DecodeOptions(strategy="vanilla", max_new_tokens=31).check_prompt(10, BUNDLE)


def test_a_prompt_longer_than_the_context() -> None:
    short = bundle_manifest((Instance(1, 100, 16, 100),))
    with pytest.raises(PromptError, match=r"the prompt has 200 tokens .* the bundle holds 16"):
        DecodeOptions().check_prompt(200, short)
    with pytest.raises(PromptError, match="the prompt has 200 tokens"):
        DecodeOptions(strategy="vanilla").check_prompt(200, short)


def test_defaults_come_from_bundle_and_strategy() -> None:
    lopa = DecodeOptions().resolved(10, BUNDLE)
    assert (lopa.lookahead, lopa.block_size, lopa.max_new_tokens) == (4, 8, 54)
    assert (lopa.window_attention, lopa.steps) == ("full", 54)
    d2f = DecodeOptions(strategy="d2f", max_new_tokens=16).resolved(10, BUNDLE)
    assert (d2f.lookahead, d2f.window_attention, d2f.max_new_tokens) == (0, "block-causal", 16)
    assert DecodeOptions(strategy="vanilla", lookahead=3).resolved(10, BUNDLE).lookahead == 0
    narrow = bundle_manifest((Instance(3, 8, 1000, 24),))
    assert DecodeOptions().resolved(10, narrow).lookahead == 2
    assert DecodeOptions().resolved(10, narrow).max_new_tokens == 256
    given = DecodeOptions(lookahead=1, window_attention="block-causal", block_size=4, steps=3)
    resolved = given.resolved(10, BUNDLE)
    assert (resolved.lookahead, resolved.block_size, resolved.steps) == (1, 4, 3)
    assert resolved.window_attention == "block-causal"


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
    assert options.branch_score() == BranchScore("mixed", 0.25, 0.75)
    assert options.sampler() == Sampler(0.5, 3, 0.9, "margin")


def test_a_budget_below_one_block_is_refused() -> None:
    manifest = bundle_manifest()
    for strategy in ("d2f", "lopa"):
        options = DecodeOptions(strategy=strategy, block_size=8, max_new_tokens=7)
        with pytest.raises(LopaError, match="max new tokens is 7, expected a whole block of 8"):
            options.check(manifest)
    DecodeOptions(strategy="vanilla", max_new_tokens=7).check(manifest)
