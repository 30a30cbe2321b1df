"""Finds a problem by its id and records its decode for the picture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...runtime.contract import LopaError
from ...runtime.session import Session
from ...runtime.strategies.registry import LOOKAHEADS
from .evaluate import Encoded, Variant
from .picture import Picture, Recorder
from .picture_page import write_page
from .picture_png import draw_png

LISTED_IDS = 4


def draw_decode(
    session: Session, encoded: Encoded, variant: Variant, folder: Path
) -> tuple[Picture, dict[str, Any]]:
    """Decode one problem; write NAME.png and NAME.html and return the picture and its numbers."""
    options, problem = variant.options, encoded.problem
    plan = options.resolved(len(encoded.ids), session.manifest)
    recorder = Recorder(len(encoded.ids), session.codec.piece)
    result = session.generate(prompt_ids=encoded.ids, options=options, on_step=recorder)
    verdict = encoded.set.task.grade(problem.item, result.text)
    won = sum(step.lookahead > 0 for step in recorder.steps)
    base = f" over {options.base}" if options.strategy in LOOKAHEADS else ""
    shape = "nested " if options.lookahead_shape == "nested" else ""
    picture = recorder.picture(
        title=f"{problem.id}: {options.strategy}{base}, {shape}lookahead {plan.lookahead.branches}",
        subtitle=(
            f"{result.tokens} tokens ({result.useful_tokens} useful) in {result.steps} steps, "
            f"TPF {result.tpf:.2f}, {won} won by a lookahead branch, "
            f"answer {'correct' if verdict.correct else 'wrong'}"
        ),
        block_size=plan.strategy.block_size,
        positions=result.tokens,
        useful=result.useful_tokens,
    )
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.-]+", "-", problem.id)
    files = [folder / f"{name}.png", folder / f"{name}.html"]
    draw_png(picture, files[0])
    write_page(picture, files[1])
    record = {
        "task": encoded.set.label,
        "id": problem.id,
        "text": result.text,
        "answer": verdict.answer,
        "correct": verdict.correct,
        "tokens": result.tokens,
        "useful_tokens": result.useful_tokens,
        "steps": result.steps,
        "won": won,
        "files": [str(file) for file in files],
    }
    return picture, record


def find_problem(name: str, encoded: Sequence[Encoded]) -> Encoded:
    """The problem with id `name` or `LABEL/ID`; raises LopaError."""
    found = [item for item in encoded if name in (item.problem.id, full_name(item))]
    if not found:
        known = ", ".join(item.problem.id for item in encoded[:LISTED_IDS])
        raise LopaError(f"no problem {name!r} among {len(encoded)}; ids are like: {known}")
    if len(found) > 1:
        names = ", ".join(full_name(item) for item in found)
        raise LopaError(f"problem {name!r} is in several tasks; choose one of: {names}")
    return found[0]


def full_name(encoded: Encoded) -> str:
    """Label and id of a problem."""
    return f"{encoded.set.label}/{encoded.problem.id}"
