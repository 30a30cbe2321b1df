"""Decodes prompts the way the model will be used, records steps and keeps the answers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..graphs.instances import plan_instances
from ..runtime.contract import LopaError
from ..runtime.engines.protocol import Engine
from ..runtime.manifest import BundleManifest, EngineInfo, ModelManifest
from ..runtime.options import DecodeOptions
from ..runtime.prompt import stop_index
from .states import RARE, TYPICAL, RecordingEngine

RARE_PER_DECODE = 4
MAX_CONTEXT = 1024
LOOKAHEAD = 4
SLOW = 0.999  # confidence that fills little per step, so that every mask ratio is met

Progress = Callable[[str, int, int], None]


def typical_settings(window_attention: str) -> tuple[DecodeOptions, ...]:
    """Settings as the model is used, by the attention of its training: with and without LoPA."""
    base = "d2f" if window_attention == "full" else "block-diffusion"
    return DecodeOptions(strategy="lopa", base=base), DecodeOptions(strategy=base)


def rare_settings(window_attention: str) -> tuple[DecodeOptions, ...]:
    """Settings that reach windows from fully masked to almost done, with and without cache."""
    if window_attention == "full":
        return (
            DecodeOptions(strategy="lopa", base="d2f", confidence=SLOW),
            DecodeOptions(strategy="lopa", base="fast-dllm", cache="dual"),
            DecodeOptions(strategy="fast-dllm", cache="none"),
        )
    return (DecodeOptions(strategy="lopa", base="block-diffusion", confidence=SLOW),)


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


@dataclass(frozen=True)
class Decodes:
    """Decodes of prompts: number `i` is of `prompts[i]` by `settings[i]`."""

    prompts: tuple[tuple[int, ...], ...]
    settings: tuple[DecodeOptions, ...]

    @classmethod
    def plan(
        cls,
        manifest: BundleManifest,
        prompts: Sequence[Sequence[int]],
        settings: Sequence[DecodeOptions],
        new_tokens: int | None,
        count: int,
    ) -> Decodes:
        """`count` decodes in which prompts and settings take turns, each pair once at most.

        Raises LopaError for a prompt that does not fit.
        """
        order = _spread(len(prompts))
        chosen, options = [], []
        for turn in range(min(count, len(prompts) * len(settings))):
            prompt = tuple(prompts[order[turn % len(order)]])
            setting = settings[(turn + turn // len(order)) % len(settings)]
            if new_tokens is not None:
                size = max(new_tokens, setting.block(manifest.model))
                setting = replace(setting, max_new_tokens=size)
            setting.check(manifest)
            setting.check_prompt(len(prompt), manifest)
            chosen.append(prompt)
            options.append(setting)
        return cls(tuple(chosen), tuple(options))

    def __len__(self) -> int:
        return len(self.prompts)

    def run(self, number: int, engine: Engine, manifest: BundleManifest) -> tuple[int, ...]:
        """Decode one; returns its tokens before the first stop token."""
        prompt = list(self.prompts[number])
        options = self.settings[number].resolved(len(prompt), manifest)
        answer: tuple[int, ...] = ()
        for event in options.decoder(engine, manifest.model).steps(prompt):
            answer = tuple(event.tokens[len(prompt) :].tolist())
        return answer[: stop_index(answer, frozenset(manifest.model.stop_token_ids))]


class AnswerFile:
    """Answers of the original model, saved as JSON after every decode."""

    def __init__(self, path: Path) -> None:
        self.path = path
        known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
        self.answers: list[tuple[int, ...]] = [tuple(answer) for answer in known]

    def add(self, answer: tuple[int, ...]) -> None:
        """Append the answer of the next decode."""
        self.answers.append(answer)
        draft = self.path.with_suffix(".draft")
        lines = ",\n".join(json.dumps(tokens) for tokens in self.answers)
        draft.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        os.replace(draft, self.path)


def record_typical(
    engine: RecordingEngine,
    manifest: BundleManifest,
    decodes: Decodes,
    samples: int,
    answers: AnswerFile,
    progress: Progress,
) -> None:
    """Decode what `answers` lacks; record about `samples` steps, as many of every decode."""
    each = -(-samples // len(decodes))
    for number in range(len(answers.answers), len(decodes)):
        progress("decoding the prompts", number, len(decodes))
        engine.start(TYPICAL, number, max(0, min(each, samples - number * each)))
        answer = decodes.run(number, engine, manifest)
        engine.save()
        answers.add(answer)


def record_rare(
    engine: RecordingEngine,
    manifest: BundleManifest,
    decodes: Decodes,
    samples: int,
    progress: Progress,
) -> None:
    """Record steps of the rarest kinds until the folder has `samples` steps in all."""
    done = {int(name.split("-")[1]) for name in engine.states.names(RARE)}
    for number in range(len(decodes)):
        kept = len(engine.states.names())
        progress("decoding for rare steps", min(kept, samples), samples)
        if number in done:
            continue
        if kept >= samples:
            return
        engine.start(RARE, number, min(RARE_PER_DECODE, samples - kept))
        decodes.run(number, engine, manifest)
        engine.save()


def _spread(count: int) -> list[int]:
    """0 to count - 1 so that the first few are spread over all: 0, then by halves."""
    return sorted(range(count), key=lambda index: (-(index & -index) if index else -count, index))
