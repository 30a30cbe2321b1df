"""Decodes and grades the problems of a run, all variants of one problem side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ...runtime.contract import LopaError
from ...runtime.options import DecodeOptions, unused_settings
from ...runtime.session import Result, Session
from ..parallel import GoOn, in_order
from ..prompt_lines import PromptLineError
from .samples import Sample, SampleLog
from .suite import Problem, TaskSet

WARM_UP_STEPS = 2
Progress = Callable[[TaskSet, Sample], None]


@dataclass(frozen=True)
class Variant:
    """Decode settings under the value of the swept field (None without a sweep)."""

    value: Any
    options: DecodeOptions


def share_settings(options: DecodeOptions, variants: Sequence[Variant]) -> list[Variant]:
    """Let settings that were given for all variants count only for those that use them.

    A setting of `options` that no variant uses stays, and is refused by their check.
    """
    idle = [
        {
            name
            for name in unused_settings(variant.options)
            if variant.options.given[name] == options.given.get(name)
        }
        for variant in variants
    ]
    useless = set.intersection(*idle)
    return [
        Variant(variant.value, variant.options.replace(**dict.fromkeys(names - useless)))
        for variant, names in zip(variants, idle, strict=True)
    ]


@dataclass(frozen=True)
class Encoded:
    """A problem with its prompt as token ids."""

    set: TaskSet
    problem: Problem
    ids: list[int]


Decoded = tuple[Encoded, Variant, Result]


def encode_suite(
    session: Session,
    suite: Sequence[TaskSet],
    variants: Sequence[Variant],
    raw: bool,
    skip_long: bool = False,
) -> tuple[list[Encoded], list[str]]:
    """Encode every prompt and check that it fits; returns those that do, and ids left out.

    Raises one error with all that do not fit, unless `skip_long` leaves them out.
    """
    encoded, faults, skipped = [], [], []
    for item in suite:
        for problem in item.problems:
            try:
                ids = session.encode(problem.prompt, None, raw)
                for variant in variants:
                    variant.options.check_prompt(len(ids), session.manifest)
            except LopaError as error:
                faults.append(f"{problem.where}: {error}")
                skipped.append(f"{item.label}/{problem.id}")
            else:
                encoded.append(Encoded(item, problem, ids))
    if faults and not (skip_long and encoded):
        raise PromptLineError(faults)
    return encoded, skipped


def evaluate(
    session: Session,
    encoded: Sequence[Encoded],
    variants: Sequence[Variant],
    log: SampleLog,
    progress: Progress,
) -> None:
    """Decode what the log does not have yet, as many at the same time as the session can.

    Samples are graded and logged in order. Variants take turns in going first, so that none always
    meets warm caches.
    """
    done = {sample.key for sample in log.samples}
    for variant in variants if encoded and len(done) < len(encoded) * len(variants) else ():
        stream = session.stream(prompt_ids=encoded[0].ids, options=variant.options)
        for _ in islice(stream, WARM_UP_STEPS):
            pass
        del stream  # gives its decode state back
    turns = [
        (item, variant)
        for index, item in enumerate(encoded)
        for variant in (
            *variants[index % len(variants) :],
            *variants[: index % len(variants)],
        )
        if (item.set.label, item.problem.id, variant.value) not in done
    ]

    def work(turn: tuple[Encoded, Variant], go_on: GoOn | None) -> Decoded:
        return *turn, decode(session, *turn, go_on)

    for item, variant, result in in_order(session.decodes, work, turns):
        sample = graded(item, variant, result)
        log.add(sample)
        progress(item.set, sample)


def decode(session: Session, item: Encoded, variant: Variant, go_on: GoOn | None) -> Result:
    """Decode one problem, unless `go_on` ends it."""
    on_step = None if go_on is None else lambda event: go_on()
    return session.generate(prompt_ids=item.ids, options=variant.options, on_step=on_step)


def graded(encoded: Encoded, variant: Variant, result: Result) -> Sample:
    """Grade one decode; this is not timed."""
    verdict = encoded.set.task.grade(encoded.problem.item, result.text)
    return Sample(
        task=encoded.set.label,
        id=encoded.problem.id,
        variant=variant.value,
        prompt=encoded.problem.prompt,
        text=result.text,
        answer=verdict.answer,
        correct=verdict.correct,
        detail="" if verdict.correct else verdict.detail,
        prompt_tokens=len(encoded.ids),
        tokens=result.tokens,
        useful_tokens=result.useful_tokens,
        steps=result.steps,
        forwards=result.forwards,
        rows=result.rows,
        seconds=round(result.seconds, 6),
        limited=result.limited,
    )
