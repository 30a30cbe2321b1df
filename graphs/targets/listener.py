"""What a build tells whoever started it while it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _ignore(news: object) -> None:
    return None


@dataclass(frozen=True)
class BuildListener:
    """`progress` is given the finished share of the engine, 0 to 1; `warn` one line per warning."""

    progress: Callable[[float], None] = _ignore
    warn: Callable[[str], None] = _ignore
