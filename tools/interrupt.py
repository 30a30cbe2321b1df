"""What Ctrl-C leaves of a command that can go on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def resumable(how: str) -> Iterator[None]:
    """Let an interrupt of the body say that its work is kept, and how it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"what was finished is kept, {how}") from None
