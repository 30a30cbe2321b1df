"""From settings to a strategy: what each base offers, and the object that decodes."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from ..manifest import ModelInfo
from ..scoring import DEFAULT_ALPHA
from .block_diffusion import BlockDiffusion
from .d2f import D2F, block_count
from .fast_dllm import FastDLLM
from .protocol import Strategy
from .vanilla import SCHEDULES, Vanilla

if TYPE_CHECKING:
    from ..options import DecodeOptions

BASES = ("d2f", "vanilla", "fast-dllm", "block-diffusion")
STRATEGIES = ("lopa", *BASES)

# What a setting may be on each base, the default first.
CHOICES: dict[str, dict[str, tuple[str, ...]]] = {
    "fill": {
        "d2f": ("threshold",),
        "vanilla": ("quota",),
        "fast-dllm": ("threshold", "factor", "quota"),
        "block-diffusion": ("threshold", "quota", "sequential"),
    },
    "cache": {
        "d2f": ("prefix",),
        "vanilla": ("none",),
        "fast-dllm": ("prefix", "none", "dual"),
        "block-diffusion": ("prefix", "none", "dual"),
    },
    "stop": {
        "d2f": ("block", "none"),
        "vanilla": ("none",),
        "fast-dllm": ("none",),
        "block-diffusion": ("token", "block", "none"),
    },
    "schedule": dict.fromkeys(("vanilla", "fast-dllm"), tuple(SCHEDULES)),
    "revision": dict.fromkeys(("fast-dllm", "block-diffusion"), ("v1", "legacy")),
}

SCORED: dict[str, tuple[str, ...]] = {"strategy": ("lopa",), "lookahead shape": ("single",)}

# Settings that not every decode uses -> what must be chosen for one that does, all of it.
USES: dict[str, dict[str, tuple[str, ...]]] = {
    "base": {"strategy": ("lopa",)},
    "lookahead": {"strategy": ("lopa",)},
    "lookahead_shape": {"strategy": ("lopa",)},
    "confirm": {"strategy": ("lopa",), "lookahead shape": ("nested",)},
    "anchor_wins": {"strategy": ("lopa",)},
    "score": SCORED,
    "score_alpha": {**SCORED, "score": tuple(DEFAULT_ALPHA)},
    "score_fraction": {**SCORED, "score": ("bottom_fraction", "mixed")},
    "score_window": {**SCORED, "score": ("sliding_minimum",)},
    "add_threshold": {"rules": ("d2f",)},
    "complete_threshold": {"rules": ("d2f",)},
    "window_attention": {"rules": ("d2f",)},
    "steps": {"rules": ("vanilla", "fast-dllm")},
    "schedule": {"rules": ("vanilla", "fast-dllm"), "fill": ("quota",)},
    "confidence": {"rules": ("d2f", "fast-dllm", "block-diffusion"), "fill": ("threshold",)},
    "factor": {"rules": ("fast-dllm",), "fill": ("factor",)},
    "small_block_size": {"rules": ("block-diffusion",)},
    "block_steps": {"rules": ("block-diffusion",)},
    "revision": {"rules": ("fast-dllm", "block-diffusion")},
    "precision_margin": {"precision policy": ("auto",)},
}

_NEEDS = {
    "full": (
        "needs a model trained with full attention, this {family} model was trained block-causal; "
        "use block-diffusion, or a bundle of a Dream, DiffuCoder or LLaDA checkpoint"
    ),
    "block-causal": (
        "needs a model trained block-causal, this {family} model was trained with full attention; "
        "use d2f, fast-dllm or vanilla, or a bundle of an SDAR, Fast-dLLM v2 or LLaDA2 checkpoint"
    ),
}


def attention_fault(base: str, model: ModelInfo) -> str | None:
    """Say why `base` cannot decode `model`, if so, and which bundle would do."""
    needed = "block-causal" if base == "block-diffusion" else "full"
    if model.window_attention == needed:
        return None
    return f"{base} {_NEEDS[needed].format(family=model.family)}"


def unused_settings(options: DecodeOptions) -> dict[str, str]:
    """Settings that were changed from their default but do nothing in this decode, and why."""
    chosen = {
        "strategy": options.strategy,
        "rules": options.rules,
        "fill": options.fill_rule,
        "score": options.score,
        "lookahead shape": options.lookahead_shape,
        "precision policy": options.precision_policy,
    }
    found = {}
    for field in fields(options):
        if getattr(options, field.name) == field.default:
            continue
        for choice, users in USES.get(field.name, {}).items():
            if chosen[choice] not in users:
                kind = "" if choice in ("strategy", "rules") else f"{choice} "
                found[field.name] = (
                    f"{field.name.replace('_', ' ')} is for {kind}{' or '.join(users)}, "
                    f"{kind}{chosen[choice]} does not use it; leave it out"
                )
                break
    return found


def make_strategy(options: DecodeOptions, model: ModelInfo) -> Strategy:
    """Build the base strategy of resolved options."""
    assert options.block_size is not None
    assert options.max_new_tokens is not None
    assert options.fill is not None
    assert options.cache is not None
    assert options.schedule is not None
    assert options.stop is not None
    if options.rules == "d2f":
        return D2F(
            block_size=options.block_size,
            max_blocks=block_count(options.max_new_tokens, options.block_size),
            add_threshold=options.add_threshold,
            complete_threshold=options.complete_threshold,
            confidence=options.confidence,
            block_causal=options.window_attention == "block-causal",
            stops=options.stop != "none",
        )
    if options.rules == "block-diffusion":
        return BlockDiffusion(
            block_size=options.block_size,
            small_block_size=options.small_block_size or options.block_size,
            new_tokens=options.max_new_tokens,
            steps=options.block_steps or options.block_size,
            fill_by=options.fill,
            threshold=options.confidence,
            cache=options.cache,
            logit_shift=model.logit_shift,
            stop=options.stop,
            stop_token_ids=model.stop_token_ids,
            legacy=options.revision == "legacy",
        )
    assert options.steps is not None
    if options.rules == "vanilla":
        return Vanilla(
            new_tokens=options.max_new_tokens,
            steps=options.steps,
            block_size=options.block_size,
            schedule=options.schedule,
        )
    return FastDLLM(
        new_tokens=options.max_new_tokens,
        steps=options.steps,
        block_size=options.block_size,
        fill_by=options.fill,
        threshold=options.confidence,
        factor=options.factor or 1.0,
        schedule=options.schedule,
        cache=options.cache,
        logit_shift=model.logit_shift,
        legacy=options.revision == "legacy",
    )
