"""Settings of each base strategy, what they default to, and which bundle serves them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from lopa.runtime.contract import Instance, LopaError
from lopa.runtime.fit import misfit, steps_needed
from lopa.runtime.manifest import BundleManifest
from lopa.runtime.options import DecodeOptions
from lopa.runtime.prompt import PromptError
from lopa.runtime.strategies.block_diffusion import BlockDiffusion
from lopa.runtime.strategies.choice import BASES, make_strategy
from lopa.runtime.strategies.d2f import D2F
from lopa.runtime.strategies.fast_dllm import FastDLLM
from lopa.runtime.strategies.vanilla import Vanilla

from .manifests import bundle_manifest

FULL = bundle_manifest()  # up to 5 branches, windows of 24 and 40, context 64, blocks of 8
CAUSAL = bundle_manifest(window_attention="block-causal", family="sdar", logit_shift=0)
MODELS = dict.fromkeys(BASES, FULL) | {"block-diffusion": CAUSAL}


def strategy(bundle: BundleManifest, prompt: int = 10, **settings: Any) -> Any:
    options = DecodeOptions(**settings)
    options.check(bundle)
    return make_strategy(options.resolved(prompt, bundle), bundle.model)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"base": "lopa"}, "base is 'lopa', expected one of ['d2f', 'vanilla', 'fast-dllm', 'bl"),
        ({"fill": "quota"}, "fill is 'quota', d2f expects one of ['threshold']"),
        ({"cache": "dual"}, "cache is 'dual', d2f expects one of ['prefix']"),
        ({"strategy": "fast-dllm", "stop": "token"}, "stop is 'token', fast-dllm expects one of"),
        ({"schedule": "even"}, "schedule is 'even', d2f expects one of ['dream', 'llada']"),
        ({"revision": "v2"}, "revision is 'v2', d2f expects one of ['legacy', 'v1']"),
        ({"small_block_size": 0}, "small block size is 0, expected 1 or more"),
        ({"block_steps": 0}, "block steps is 0, expected 1 or more"),
        ({"factor": 0.0}, "factor is 0.0, expected more than 0"),
        ({"score_window": 0}, "score window is 0, expected 1 or more"),
        (
            {"strategy": "fast-dllm", "factor": 1.0, "fill": "quota"},
            "factor is 1.0, fill 'quota' has none",
        ),
    ],
)
def test_fault(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(LopaError) as caught:
        DecodeOptions(**settings).check(FULL)
    assert str(caught.value).startswith(fault)


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
    options = DecodeOptions(strategy="lopa" if lookahead else base, base=base)
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
        "full attention; use d2f, fast-dllm or vanilla, or a bundle of an SDAR, Fast-dLLM v2 or "
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
    for prompt in (1, 8, 9, 40):
        rules = strategy(CAUSAL, prompt, strategy="block-diffusion")
        assert rules.length(prompt) == 56
        shifted = bundle_manifest(window_attention="block-causal")
        assert strategy(shifted, prompt, strategy="block-diffusion").length(prompt) <= 57


@pytest.mark.parametrize("base", BASES)
def test_resolving_leaves_nothing_open(base: str) -> None:
    resolved = DecodeOptions(base=base).resolved(10, MODELS[base])
    optional = {"score_alpha", "top_k", "top_p", "factor"}
    unset = {f.name for f in fields(resolved) if getattr(resolved, f.name) is None}
    assert unset <= optional
    assert resolved.resolved(10, MODELS[base]) == resolved


def shapes(bundle: BundleManifest, prompt: int, **settings: Any) -> list[tuple[int, int, int, int]]:
    options = DecodeOptions(**settings).resolved(prompt, bundle)
    steps = steps_needed(options, bundle.model, prompt)
    return [(s.branches, s.window, s.context, s.rows) for s in steps]


def test_steps_needed() -> None:
    lopa = {"max_new_tokens": 16, "lookahead": 2}
    assert shapes(FULL, 10, **lopa) == []
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
        replace(options, max_new_tokens=27).check_prompt(14, FULL)
    assert misfit(FULL.instances, []) is None
