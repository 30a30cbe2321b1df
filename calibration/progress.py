"""How far a calibration is, for whoever shows it."""

from __future__ import annotations

from collections.abc import Callable

# Told the running stage, how much of it is done, and of how much; 1 in all: not measured.
Progress = Callable[[str, int, int], None]
