"""Writes what every step of a decode did, one JSON line per step."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from ..runtime.contract import LopaError
from ..runtime.decoder import StepEvent
from .paths import writes_to_stdout

Trace = Callable[[Any, StepEvent], None]


@contextlib.contextmanager
def open_trace(name: str | None) -> Iterator[Trace]:
    """Yield a function that writes one step of the prompt with the given id; `-` is stdout.

    The file takes its name when all is written; an error leaves what was there before. If whoever
    reads standard output has gone, what was decoded until then is written.
    """
    if name is None:
        yield lambda prompt_id, event: None
        return
    if writes_to_stdout(name):
        yield _writer(sys.stdout)
        return
    path = Path(name)
    path = path.resolve() if path.is_symlink() else path
    if path.is_dir():
        raise LopaError(f"trace {path} is a folder, expected a file name")
    if path.exists() and not path.is_file():  # a pipe or device is written as it is
        with path.open("w", encoding="utf-8") as stream:
            yield _writer(stream)
        return
    try:
        handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.absolute().parent)
    except OSError as error:
        raise LopaError(f"cannot write a trace to {path}: {error.strerror}") from None
    try:
        gone: BrokenPipeError | None = None
        with open(handle, "w", encoding="utf-8") as file:
            try:
                yield _writer(file)
            except BrokenPipeError as error:
                gone = error
        os.chmod(draft, 0o644)
        os.replace(draft, path)
        if gone is not None:
            raise gone
    finally:
        Path(draft).unlink(missing_ok=True)


def _writer(file: TextIO) -> Trace:
    def write(prompt_id: Any, event: StepEvent) -> None:
        file.write(json.dumps({"id": prompt_id, **step_record(event)}) + "\n")

    return write


def step_record(event: StepEvent) -> dict[str, Any]:
    """One step as plain data.

    `extras` are the tokens by which a winning lookahead had run ahead (none for the anchor),
    `filled` those that the step set beside them, each with its position.
    """
    return {
        "step": event.step,
        "winner": event.winner,
        "scores": list(event.scores),
        "extras": [[position, token] for position, token in event.extras],
        "filled": [[position, token] for position, token in event.filled],
        "cached": event.cached,
        "window": event.window,
    }
