"""Settings of each base strategy, what they default to, and which bundle serves them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lopa.runtime.contract import Instance, LopaError, misfit
from lopa.runtime.manifest import BundleManifest
from lopa.runtime.options import DecodeOptions, unused_settings
from lopa.runtime.prompt import PromptError
from lopa.runtime.strategies.block_diffusion import BlockDiffusion
from lopa.runtime.strategies.d2f import D2F
from lopa.runtime.strategies.fast_dllm import FastDLLM
from lopa.runtime.strategies.registry import BASES, strategy_names
from lopa.runtime.strategies.vanilla import Vanilla

from .manifests import bundle_manifest

FULL = bundle_manifest()  # up to 5 branches, windows of 24 and 40, context 64, blocks of 8
CAUSAL = bundle_manifest(window_attention="block-causal", family="sdar", logit_shift=0)
OTHER_ATTENTION = {True: "block-causal", False: "full"}  # than the default of lopa, of d2f
MODELS = dict.fromkeys(BASES, FULL) | {"block-diffusion": CAUSAL}


def strategy(bundle: BundleManifest, prompt: int = 10, **settings: Any) -> Any:
    options = DecodeOptions(**settings)
    options.check(bundle)
    return options.resolved(prompt, bundle).strategy


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"base": "lopa"}, "base is 'lopa', expected one of: d2f, vanilla, fast-dllm, block-d"),
        ({"fill": "quota"}, "fill is 'quota', d2f expects threshold"),
        ({"cache": "dual"}, "cache is 'dual', d2f expects prefix"),
        ({"strategy": "fast-dllm", "stop": "token"}, "stop is 'token', fast-dllm expects none"),
        (
            {"strategy": "vanilla", "schedule": "even"},
            "schedule is 'even', vanilla expects one of: dream, llada",
        ),
        (
            {"strategy": "fast-dllm", "revision": "v2"},
            "revision is 'v2', fast-dllm expects one of: v1, legacy",
        ),
        ({"strategy": "fast-dllm", "factor": 0.0}, "factor is 0.0, expected more than 0"),
        (
            {"score": "sliding_minimum", "score_window": 0},
            "score window is 0, expected 1 or more",
        ),
    ],
)
def test_fault(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(LopaError) as caught:
        DecodeOptions(**settings).check(FULL)
    assert str(caught.value).startswith(fault)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"strategy": "vanilla", "add_threshold": 0.2}, "add threshold is for d2f, vanilla"),
        ({"strategy": "d2f", "score": "mixed"}, "score is for lopa, d2f"),
        ({"strategy": "d2f", "lookahead": 3}, "lookahead is for lopa, d2f"),
        ({"strategy": "d2f", "lookahead": 0}, "lookahead is for lopa, d2f"),
        ({"strategy": "d2f", "base": "vanilla"}, "base is for strategy lopa, strategy d2f"),
        ({"strategy": "d2f", "anchor_wins": True}, "anchor wins is for lopa, d2f"),
        ({"factor": 1.0}, "factor is for fast-dllm, d2f"),
        ({"block_steps": 4}, "block steps is for block-diffusion, d2f"),
        ({"small_block_size": 4}, "small block size is for block-diffusion, d2f"),
        ({"steps": 4}, "steps is for vanilla or fast-dllm, d2f"),
        ({"schedule": "llada"}, "schedule is for vanilla or fast-dllm, d2f"),
        ({"revision": "legacy"}, "revision is for fast-dllm or block-diffusion, d2f"),
        ({"base": "vanilla", "window_attention": "full"}, "window attention is for d2f, vanilla"),
        (
            {"base": "vanilla", "confidence": 0.5},
            "confidence is for d2f or fast-dllm or block-diffusion, vanilla",
        ),
        (
            {"strategy": "fast-dllm", "factor": 1.0, "fill": "quota"},
            "factor is for fill factor, fill quota",
        ),
        (
            {"strategy": "fast-dllm", "fill": "quota", "confidence": 0.5},
            "confidence is for fill threshold, fill quota",
        ),
        (
            {"strategy": "fast-dllm", "factor": 1.0, "confidence": 0.5},
            "confidence is for fill threshold, fill factor",
        ),
        (
            {"strategy": "fast-dllm", "schedule": "llada"},
            "schedule is for fill quota, fill threshold",
        ),
        ({"score_alpha": 0.5}, "score alpha is for score mixed or reward_entropy, score mean_con"),
        ({"score_window": 4}, "score window is for score sliding_minimum, score mean_confidence"),
    ],
)
def test_settings_that_do_nothing_are_refused(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(LopaError) as caught:
        DecodeOptions(**settings).check(FULL)
    assert str(caught.value).startswith(fault)
    assert str(caught.value).endswith(" does not use it; leave it out")


def test_a_default_given_by_name_is_refused_where_it_is_unused() -> None:
    options = DecodeOptions(strategy="vanilla", add_threshold=0.1, confidence=0.9, seed=0)
    assert list(unused_settings(options)) == ["add_threshold", "confidence"]


def test_none_is_not_given() -> None:
    options = DecodeOptions(strategy="vanilla", add_threshold=None, confidence=None)
    options.check(FULL)
    assert options == DecodeOptions(strategy="vanilla")
    assert options.replace(strategy=None) == DecodeOptions()


def test_what_decides_over_a_setting_must_be_used_itself() -> None:
    options = DecodeOptions(lookahead_shape="nested", score="mixed", score_alpha=0.2)
    assert unused_settings(options) == {
        name: f"{label} is for lookahead shape single, lookahead shape nested does not use it; "
        "leave it out"
        for name, label in (("score", "score"), ("score_alpha", "score alpha"))
    }


@pytest.mark.parametrize(
    ("settings", "fitting"),
    [
        ({"strategy": "vanilla", "block_size": 8, "steps": 7}, "3 blocks: 6 or 9"),
        ({"strategy": "fast-dllm", "fill": "quota", "steps": 7}, "3 blocks: 6 or 9"),
        ({"strategy": "fast-dllm", "fill": "quota", "steps": 2}, "3 blocks: 3"),
        ({"base": "vanilla", "block_size": 9, "steps": 5}, "3 blocks: 3 or 6"),
    ],
)
def test_steps_must_spread_evenly_over_the_blocks(settings: dict[str, Any], fitting: str) -> None:
    options = DecodeOptions(**settings, max_new_tokens=24)
    expected = f"steps is {settings['steps']}, expected a multiple of the {fitting}"
    with pytest.raises(LopaError) as caught:
        options.check(FULL)
    assert str(caught.value) == expected
    open_budget = options.replace(max_new_tokens=None)
    open_budget.check(FULL)
    with pytest.raises(LopaError) as caught:
        open_budget.check_prompt(40, FULL)
    assert str(caught.value) == expected
    options.replace(steps=6).check(FULL)
    options.replace(steps=None, max_new_tokens=23).check(FULL)


@pytest.mark.parametrize("name", [*strategy_names(), *(f"lopa {base}" for base in BASES)])
def test_every_setting_is_used_or_refused(name: str) -> None:
    """The table of uses against what the strategy object and the branch score are made of."""
    base = name.removeprefix("lopa ") if name != "lopa" else "d2f"
    chosen: dict[str, Any] = {"strategy": base}
    if name.startswith("lopa"):
        chosen = {"strategy": "lopa", "base": base}
    bundle = MODELS[base]
    plain = DecodeOptions(**chosen)

    def made(options: DecodeOptions) -> tuple[Any, ...]:
        plan = options.resolved(10, bundle)
        return plan.strategy, plan.lookahead

    changes: dict[str, Any] = {
        "lookahead": 2, "anchor_wins": True, "score": "least_segment", "add_threshold": 0.3,
        "complete_threshold": 0.7, "window_attention": OTHER_ATTENTION[name.startswith("lopa")],
        "confidence": 0.7, "factor": 2.0, "steps": 5, "small_block_size": 4, "block_steps": 3,
        "revision": "legacy",
    }  # fmt: skip
    for field, value in changes.items():
        changed = plain.replace(**{field: value})
        same = made(changed) == made(plain)
        assert (field in unused_settings(changed)) == same, field


def test_block_diffusion_faults() -> None:
    options = DecodeOptions(strategy="block-diffusion", small_block_size=3, max_new_tokens=4)
    with pytest.raises(LopaError, match=r"^small block size is 3, expected a divisor of 8$"):
        options.check(CAUSAL)
    shifted = bundle_manifest(window_attention="block-causal", family="fast-dllm-v2")
    with pytest.raises(LopaError) as caught:
        options.check(shifted)
    assert str(caught.value) == (
        "small block size is 3, expected a divisor of 8; "
        "max new tokens is 4, expected a whole block of 8 or more"
    )


@pytest.mark.parametrize("base", ["d2f", "vanilla", "fast-dllm"])
@pytest.mark.parametrize("lookahead", [False, True])
def test_full_attention_is_needed(base: str, lookahead: bool) -> None:
    options = DecodeOptions(base=base) if lookahead else DecodeOptions(strategy=base)
    options.check(FULL)
    with pytest.raises(LopaError) as caught:
        options.check(CAUSAL)
    assert str(caught.value) == (
        f"{base} needs a model trained with full attention, this sdar model was trained "
        "block-causal; use block-diffusion, or a bundle of a Dream, DiffuCoder or LLaDA checkpoint"
    )


def test_block_causal_attention_is_needed() -> None:
    options = DecodeOptions(base="block-diffusion")
    options.check(CAUSAL)
    with pytest.raises(LopaError) as caught:
        options.check(FULL)
    assert str(caught.value) == (
        "block-diffusion needs a model trained block-causal, this dream model was trained with "
        "full attention; use d2f, vanilla or fast-dllm, or a bundle of an SDAR, Fast-dLLM v2 or "
        "LLaDA2 checkpoint"
    )
    DecodeOptions(strategy="d2f", window_attention="full").check(CAUSAL)  # asked for by name


def test_defaults_of_each_base() -> None:
    d2f = strategy(FULL)
    assert isinstance(d2f, D2F)
    assert d2f.stops
    assert not strategy(FULL, stop="none").stops
    assert strategy(FULL, strategy="vanilla") == Vanilla(54, 54, 54, "dream")
    assert strategy(FULL, base="vanilla", block_size=9, steps=6) == Vanilla(54, 6, 9, "dream")
    unshifted = bundle_manifest(logit_shift=0, family="llada")
    fast = strategy(unshifted, strategy="fast-dllm", max_new_tokens=16)
    assert fast == FastDLLM(16, 16, 8, "threshold", 0.9, 1.0, "llada", "prefix", 0, False)
    bound = strategy(FULL, strategy="fast-dllm", factor=0.5, cache="dual", revision="legacy")
    assert (bound.fill_by, bound.factor, bound.cache, bound.legacy) == ("factor", 0.5, "dual", True)
    blocks = strategy(CAUSAL, base="block-diffusion", max_new_tokens=16)
    assert blocks == BlockDiffusion(8, 8, 16, 8, "threshold", 0.9, "prefix", 0, "token", (290, 292))


def test_block_diffusion_takes_what_fits_in_whole_blocks() -> None:
    shifted = bundle_manifest(window_attention="block-causal")
    for prompt in (1, 8, 9, 40):
        for cache in ("prefix", "none"):
            rules = strategy(CAUSAL, prompt, strategy="block-diffusion", cache=cache)
            assert (rules.length(prompt), rules.slots(prompt)) == (64, 64)
        rules = strategy(shifted, prompt, strategy="block-diffusion")
        assert (rules.length(prompt), rules.slots(prompt)) == (65, 64)
        whole = strategy(shifted, prompt, strategy="block-diffusion", cache="none")
        assert whole.length(prompt) == 64


@pytest.mark.parametrize("base", BASES)
def test_resolving_leaves_nothing_open(base: str) -> None:
    strategy = DecodeOptions(base=base).resolved(10, MODELS[base]).strategy
    assert all(value is not None for value in vars(strategy).values())


def shapes(bundle: BundleManifest, prompt: int, **settings: Any) -> list[tuple[int, int, int, int]]:
    plan = DecodeOptions(**settings).resolved(prompt, bundle)
    steps = plan.strategy.shapes(prompt, plan.lookahead.branches + 1)
    return [(s.branches, s.window, s.context, s.rows) for s in steps]


def test_steps_needed() -> None:
    lopa = {"max_new_tokens": 16, "lookahead": 2}
    assert shapes(FULL, 10, **lopa) == [(1, 18, 18, 8), (3, 8, 18, 24)]
    assert shapes(FULL, 10, base="vanilla", **lopa) == [(3, 26, 26, 48)]
    fast = {"base": "fast-dllm", **lopa}
    assert shapes(FULL, 10, cache="none", **fast) == [(3, 26, 26, 24)]
    assert shapes(FULL, 10, cache="prefix", **fast) == [(1, 26, 26, 8), (3, 16, 26, 24)]
    assert shapes(FULL, 10, cache="dual", **fast) == [(1, 26, 26, 8), (3, 8, 26, 24)]
    blocks = {"base": "block-diffusion", **lopa}
    assert shapes(CAUSAL, 10, **blocks) == [(1, 8, 32, 8), (3, 8, 32, 24)]
    assert shapes(CAUSAL, 7, **blocks) == [(3, 8, 24, 24)]
    assert shapes(CAUSAL, 10, cache="none", **blocks) == [(3, 32, 32, 24)]


def test_a_bundle_without_the_instance_says_what_to_build() -> None:
    options = DecodeOptions(base="fast-dllm", cache="prefix", max_new_tokens=26, lookahead=4)
    options.check(FULL)
    options.check_prompt(14, replace(FULL, instances=(*FULL.instances, Instance(5, 26, 64, 130))))
    with pytest.raises(PromptError) as caught:
        options.check_prompt(14, FULL)
    assert str(caught.value) == (
        "lopa on a prompt of 14 tokens needs a step of 5 branches by 26 window tokens over 40 "
        "cache slots, the bundle has b1-w24-c64-r24, b5-w24-c64-r120, b1-w40-c64-r40; "
        "build with --lookahead 4 --window 26 --context 40"
    )
    with pytest.raises(PromptError, match=r"build with --prefill 41 --context 41$"):
        options.replace(max_new_tokens=27).check_prompt(14, FULL)
    assert misfit(FULL.instances, []) is None
