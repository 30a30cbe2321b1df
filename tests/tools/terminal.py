"""A terminal to draw on."""

from __future__ import annotations

import io


class Terminal(io.StringIO):
    """Text output that says it is a terminal."""

    def isatty(self) -> bool:
        return True
