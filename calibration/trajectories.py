"""Decodes prompts the way the model will be used and records the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..graphs.instances import plan_instances
from ..runtime.contract import LopaError
from ..runtime.engines.onnxruntime import OnnxRuntimeEngine
from ..runtime.manifest import BundleManifest, EngineInfo, ModelManifest
from ..runtime.options import DecodeOptions
from .states import RecordingEngine, StateFolder

STATES_PER_PROMPT = 4
MAX_CONTEXT = 1024
LOOKAHEAD = 4
SLOW = 0.999  # confidence that fills little per step, so that every mask ratio is met

Progress = Callable[[str, int, int], None]


def trajectories(window_attention: str) -> tuple[DecodeOptions, ...]:
    """Decode settings that prompts take turns in, by the attention of the training.

    Together they reach prefill and cached steps, one and several branches, and windows from fully
    masked to almost done.
    """
    if window_attention == "full":
        return (
            DecodeOptions(strategy="lopa", base="d2f", confidence=SLOW),
            DecodeOptions(strategy="lopa", base="fast-dllm", cache="dual"),
            DecodeOptions(strategy="d2f"),
            DecodeOptions(strategy="lopa", base="d2f"),
            DecodeOptions(strategy="fast-dllm", cache="none"),
        )
    return (
        DecodeOptions(strategy="lopa", base="block-diffusion", confidence=SLOW),
        DecodeOptions(strategy="lopa", base="block-diffusion"),
        DecodeOptions(strategy="block-diffusion"),
    )


def calibration_bundle(model: ModelManifest, context: int | None) -> BundleManifest:
    """A manifest under which the engine runs a model folder in place.

    Raises LopaError for a context the model does not have.
    """
    positions = model.model.max_positions
    longest = min(MAX_CONTEXT, positions) if context is None else context
    if longest > positions:
        raise LopaError(f"context {longest} is longer than the model's {positions} positions")
    return BundleManifest(
        schema=model.schema,
        contract=model.contract,
        model=model.model,
        graph=model.graph,
        engine=EngineInfo("onnxruntime", dynamic=True, versions={}),
        instances=plan_instances(LOOKAHEAD, [longest], [longest], [longest]),
        source=model.source,
        versions=model.versions,
        files=model.files,
    )


def record_states(
    folder: Path,
    manifest: BundleManifest,
    prompts: Sequence[Sequence[int]],
    new_tokens: int | None,
    samples: int,
    states: StateFolder,
    progress: Progress,
) -> None:
    """Fill `states` with about `samples` steps of decoding `prompts`.

    Prompts that are there already are not decoded again. Raises LopaError for a prompt that does
    not fit.
    """
    done = {int(name.split("-")[0]) for name in states.names()}
    settings = trajectories(manifest.model.window_attention)
    engine: RecordingEngine | None = None
    for turn, number in enumerate(_spread(len(prompts))):
        kept = len(states.names())
        progress("decoding the prompts", min(kept, samples), samples)
        if turn in done:
            continue
        if kept >= samples:
            return
        if engine is None:
            opened = OnnxRuntimeEngine(folder, manifest)
            engine = RecordingEngine(opened, manifest.model.mask_token_id, states)
        engine.prompt = turn
        options, prompt = settings[turn % len(settings)], prompts[number]
        if new_tokens is not None:
            size = max(new_tokens, options.block(manifest.model))
            options = replace(options, max_new_tokens=size)
        options.check(manifest)
        options.check_prompt(len(prompt), manifest)
        decoder = options.resolved(len(prompt), manifest).decoder(engine, manifest.model)
        for _ in decoder.steps(prompt):
            pass
        engine.keep(min(STATES_PER_PROMPT, samples - kept))


def _spread(count: int) -> list[int]:
    """0 to count - 1 so that the first few are spread over all: 0, then by halves."""
    return sorted(range(count), key=lambda index: (-(index & -index) if index else -count, index))
