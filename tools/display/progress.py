"""Progress of long commands, on stderr and for people only."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Protocol

from .report import size_text


class Progress(Protocol):
    """Told how far the running stage is: bytes, or what `unit` says; `total` 1: not measured."""

    def __call__(self, stage: str, done: int, total: int, unit: str = "", /) -> None:
        """Take the news."""


@contextlib.contextmanager
def show_progress(shown: bool = True) -> Iterator[Progress]:
    """Yield a function that draws the running stage; silent unless stderr is a terminal."""
    if not shown or not sys.stderr.isatty():
        yield lambda stage, done, total, unit="": None
        return
    from rich import progress as bars
    from rich.console import Console

    with bars.Progress(
        bars.SpinnerColumn(),
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=24),
        bars.TimeElapsedColumn(),
        bars.TextColumn("{task.fields[size]}"),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
    ) as drawn:
        task = drawn.add_task("", total=None, size="")

        def progress(stage: str, done: int, total: int, unit: str = "", /) -> None:
            measured = total > 1
            sizes = f"{done} {unit}" if unit else f"{size_text(done)} of {size_text(total)}"
            size = sizes if measured else ""
            if stage != drawn.tasks[0].description:
                drawn.reset(task, total=total if measured else None)
            whole = total if measured else None
            drawn.update(task, description=stage, completed=done, total=whole, size=size)

        yield progress
