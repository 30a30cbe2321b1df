"""Decodes prompts the way the model will be used, records steps and keeps the answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..graphs.instances import plan_instances
from ..runtime.contract import CONTRACT_VERSION, LopaError, misfit
from ..runtime.engine_info import EngineInfo
from ..runtime.engines.protocol import DecodeState
from ..runtime.manifest import (
    SCHEMA_VERSION,
    BundleManifest,
    GraphInfo,
    ModelInfo,
    ModelManifest,
    Source,
)
from ..runtime.options import DecodeOptions
from ..runtime.prompt import PromptError, stop_index
from ..runtime.staging import write_whole
from .progress import Progress
from .states import RARE, TYPICAL, RecordingEngine

RARE_PER_DECODE = 4
MAX_CONTEXT = 1024
LOOKAHEAD = 4
SLOW = 0.999  # confidence that fills little per step, so that every mask ratio is met


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


def every_setting(model: ModelInfo, new_tokens: int | None) -> tuple[DecodeOptions, ...]:
    """All settings that prompts are decoded with."""
    attention = model.window_attention
    chosen = (*typical_settings(attention), *rare_settings(attention))
    return tuple(with_budget(setting, new_tokens, model) for setting in chosen)


def calibration_bundle(model: ModelManifest, context: int | None) -> BundleManifest:
    """A manifest under which the engine runs a model folder in place.

    Raises LopaError for a context the model does not have.
    """
    positions = model.model.max_positions
    longest = min(MAX_CONTEXT, positions) if context is None else context
    if longest > positions:
        raise LopaError(
            f"context {longest} is longer than the model's {positions} positions; "
            f"choose --context {positions} or less"
        )
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


def planned_bundle(model: ModelInfo, context: int | None) -> BundleManifest:
    """The same of a model that is not exported yet: prompts can be checked against it."""
    model_manifest = ModelManifest(
        schema=SCHEMA_VERSION,
        contract=CONTRACT_VERSION,
        model=model,
        graph=GraphInfo("", "fp32", 0),
        source=Source("", "", None, None),
        versions={},
        files={},
    )
    return calibration_bundle(model_manifest, context)


def with_budget(setting: DecodeOptions, new_tokens: int | None, model: ModelInfo) -> DecodeOptions:
    """The setting with `new_tokens`, a block at least; None leaves its default."""
    if new_tokens is None:
        return setting
    return setting.replace(max_new_tokens=max(new_tokens, setting.block(model)))


def check_prompt(ids: Sequence[int], setting: DecodeOptions, manifest: BundleManifest) -> None:
    """Raise PromptError for ids that the model does not have or that do not fit its context."""
    vocabulary = manifest.model.vocab_size
    if not ids:
        raise PromptError("the prompt is empty; give at least one token")
    for token in ids:
        if not 0 <= token < vocabulary:
            raise PromptError(f"prompt id {token} is outside the vocabulary of {vocabulary}")
    context = max(instance.context for instance in manifest.instances)
    more = context < manifest.model.max_positions
    mend = "give a shorter prompt" + " or a larger --context" * more
    if setting.room(len(ids), manifest) < 1:
        raise PromptError(
            f"a prompt of {len(ids)} tokens leaves no room for an answer in {context} cache slots; "
            f"{mend}"
        )
    plan = setting.resolved(len(ids), manifest)
    steps = plan.strategy.shapes(len(ids), plan.lookahead.branches + 1)
    if misfit(manifest.instances, steps):
        slots = max(step.context for step in steps)
        raise PromptError(
            f"a prompt of {len(ids)} tokens needs {slots} cache slots to be decoded, "
            f"there are {context}; {mend} or a smaller --max-new-tokens"
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
            setting = with_budget(setting, new_tokens, manifest.model)
            setting.check(manifest)
            check_prompt(prompt, setting, manifest)
            chosen.append(prompt)
            options.append(setting)
        return cls(tuple(chosen), tuple(options))

    def __len__(self) -> int:
        return len(self.prompts)

    def run(self, number: int, engine: DecodeState, manifest: BundleManifest) -> tuple[int, ...]:
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
        lines = ",\n".join(json.dumps(tokens) for tokens in self.answers)
        write_whole(self.path, f"[\n{lines}\n]\n".encode())


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
