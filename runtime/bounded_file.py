"""Files and streams read up to a limit: one that never ends is a fault, not a hang."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from .contract import LopaError


def read_bounded(path: Path, limit: int) -> bytes:
    """Read a file of at most `limit` bytes; raises LopaError for more, OSError as `open` does."""
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise LopaError(f"{path} has more than {size_text(limit)}; expected a smaller file")
    return data


def read_bounded_lines(stream: BinaryIO, name: str, line_limit: int, limit: int) -> bytes:
    """Read `stream`, called `name` in messages, line by line.

    Raises LopaError when a line has more than `line_limit` bytes or all have more than `limit`.
    """
    found, read = list[bytes](), 0
    while line := stream.readline(line_limit + 1):
        found.append(line)
        read += len(line)
        if len(line) > line_limit:
            raise LopaError(f"{name}:{len(found)}: the line has more than {size_text(line_limit)}")
        if read > limit:
            raise LopaError(f"{name} has more than {size_text(limit)}")
    return b"".join(found)


def size_text(size: int) -> str:
    """A number of bytes in the largest unit that divides it."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} bytes"
