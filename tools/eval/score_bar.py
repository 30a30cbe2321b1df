"""Progress of a run on stderr, for people only: running score and TPF."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence

from .evaluate import Progress
from .samples import Sample
from .suite import TaskSet


@contextlib.contextmanager
def show_scores(
    total: int, before: Sequence[Sample] = (), shown: bool = True
) -> Iterator[Progress]:
    """Yield a function that takes each new sample; silent unless stderr is a terminal."""
    if not shown or not sys.stderr.isatty():
        yield lambda task, sample: None
        return
    from rich import progress as bars
    from rich.console import Console

    correct, tokens, steps = (
        sum(sample.correct for sample in before),
        sum(sample.tokens for sample in before),
        sum(sample.steps for sample in before),
    )
    with bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=24),
        bars.MofNCompleteColumn(),
        bars.TextColumn("{task.fields[numbers]}"),
        bars.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
    ) as drawn:
        bar = drawn.add_task("", total=total, completed=len(before), numbers="")
        done = len(before)

        def progress(task: TaskSet, sample: Sample) -> None:
            nonlocal correct, tokens, steps, done
            done += 1
            correct += sample.correct
            tokens += sample.tokens
            steps += sample.steps
            numbers = f"score {100 * correct / done:.1f} %  TPF {tokens / max(steps, 1):.2f}"
            drawn.update(bar, description=task.label, completed=done, numbers=numbers)

        yield progress
