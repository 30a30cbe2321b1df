"""Progress of a run: problems, running score and TPF."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from ..display.progress import show_progress
from .evaluate import Progress
from .samples import Sample
from .suite import TaskSet
from .totals import Totals


@contextlib.contextmanager
def show_scores(
    total: int, before: Sequence[Sample] = (), shown: bool = True
) -> Iterator[Progress]:
    """Yield a function that takes each new sample."""
    found = Totals.of(before)
    with show_progress(shown) as shows:
        shows("decoding", found.problems, total, f"of {total}")

        def progress(task: TaskSet, sample: Sample) -> None:
            nonlocal found
            found += Totals.of([sample])
            numbers = f"score {found.score:.1f} %, TPF {found.tpf:.2f}"
            shows("decoding", found.problems, total, f"of {total}, {task.label}, {numbers}")

        yield progress
