"""Progress of long commands, on stderr: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Protocol

from .report import size_text

LINE_SECONDS = 5.0  # between two lines of progress in a pipe or a log


class Progress(Protocol):
    """Told how far the running stage is: bytes, or what `unit` says; `total` 1: not measured."""

    def __call__(self, stage: str, done: int, total: int, unit: str = "", /) -> None:
        """Take the news."""


@contextlib.contextmanager
def show_progress(shown: bool = True) -> Iterator[Progress]:
    """Yield a function that shows the running stage on stderr; it does nothing unless `shown`."""
    if not shown:
        yield lambda stage, done, total, unit="": None
    elif sys.stderr.isatty():
        with _bar() as progress:
            yield progress
    else:
        with _written(ProgressLines(), threading.Event()) as progress:
            yield progress


class ProgressLines:
    """The latest news as lines: stage, how much of it is done, time since the command began."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._started, self._latest = clock, clock(), ""

    def __call__(self, stage: str, done: int, total: int, unit: str = "", /) -> None:
        """Take the news."""
        self._latest = ", ".join(filter(None, (stage, amount_text(done, total, unit))))

    def write(self) -> None:
        """Write a line, if there is news."""
        elapsed = timedelta(seconds=int(self._clock() - self._started))
        if self._latest:
            with contextlib.suppress(OSError):  # whoever read standard error may have gone
                print(f"lopa: {self._latest}, {elapsed}", file=sys.stderr, flush=True)


def amount_text(done: int, total: int, unit: str) -> str:
    """What a stage has done, in words; empty where it is not measured."""
    if total <= 1:
        return ""
    return f"{done} {unit}" if unit else f"{size_text(done)} of {size_text(total)}"


@contextlib.contextmanager
def _written(lines: ProgressLines, stopped: threading.Event) -> Iterator[Progress]:
    """Write the news at every beat, also while a stage says nothing for long."""

    def beat() -> None:
        while not stopped.wait(LINE_SECONDS):
            lines.write()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        stopped.set()
        thread.join()


@contextlib.contextmanager
def _bar() -> Iterator[Progress]:
    """Draw a bar that goes away at the end."""
    from rich import progress as bars
    from rich.console import Console

    with bars.Progress(
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=24),
        bars.TimeElapsedColumn(),
        bars.TextColumn("{task.fields[amount]}"),
        bars.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
    ) as drawn:
        task = drawn.add_task("", total=None, amount="")

        def progress(stage: str, done: int, total: int, unit: str = "", /) -> None:
            whole = total if total > 1 else None
            if stage != drawn.tasks[0].description:
                drawn.reset(task, total=whole, completed=done)
            amount = amount_text(done, total, unit)
            drawn.update(task, description=stage, completed=done, total=whole, amount=amount)

        yield progress
