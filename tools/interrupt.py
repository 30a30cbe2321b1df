"""What Ctrl-C leaves of a command that can go on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def resumable(how: str, kept: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Let an interrupt of the body say that its work is kept, if it is, and how it goes on."""
    try:
        yield
    except KeyboardInterrupt:
        if not kept():
            raise
        raise KeyboardInterrupt(f"what was finished is kept, {how}") from None
