"""A run: everything decoded and graded, each sample in its folder's log as soon as it is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...runtime.session import Session
from ..interrupt import resumable
from .evaluate import Encoded, Variant, evaluate
from .record import open_run
from .samples import FILE, Sample, SampleLog
from .score_bar import show_scores


def score_all(
    session: Session,
    encoded: Sequence[Encoded],
    variants: Sequence[Variant],
    summary: dict[str, Any],
    folder: Path | None,
    *,
    resume: bool,
    force: bool,
    shown: bool,
) -> tuple[dict[str, Any], list[Sample]]:
    """Decode what `folder` does not have yet; returns the summary of the run and all its samples.

    Without a folder nothing is kept. `shown` shows the progress. Raises LopaError
    when the folder may not be written or has another run (`open_run`).
    """
    total = len(encoded) * len(variants)
    if folder is None:
        log = SampleLog(None)
        with show_scores(total, shown=shown) as progress:
            evaluate(session, encoded, variants, log, progress)
        return summary, log.samples
    summary, before = open_run(folder, summary, resume, force)
    log = SampleLog(folder / FILE, before)
    try:
        with (
            resumable("the same command with --resume goes on"),
            show_scores(total, before, shown) as progress,
        ):
            evaluate(session, encoded, variants, log, progress)
    finally:
        log.close()
    return summary, log.samples
