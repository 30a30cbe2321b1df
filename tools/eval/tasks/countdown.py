"""Countdown: demo records, or public rows {"input": "a,b,c,target", "output": equations}."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...demo import countdown
from .demo_row import HELD_OUT, demo_item, grid_or_numbers
from .protocol import Item, RowError, Verdict, text_of

NUMBERS = re.compile(r"\d+(,\d+){2,}")


@dataclass(frozen=True)
class Countdown:
    """Right if every equation holds, each number is used once and the last result is the target."""

    name: str = "countdown"
    file: Path | None = HELD_OUT
    instruction: str = ""
    runs_code: bool = False

    def item(self, row: Mapping[str, Any]) -> Item | None:
        """Read either kind of row."""
        if not grid_or_numbers(row):
            return demo_item(row, self.name, {"numbers": list, "target": int})
        if NUMBERS.fullmatch(text_of(row, "input")) is None:
            raise RowError(f"input is {row['input']!r:.40}, expected 'a,b,c,target'")
        text_of(row, "output")
        problem = countdown.from_public_row(dict(row))
        return Item(None, problem.prompt, problem.answer, problem.check)

    def grade(self, item: Item, text: str) -> Verdict:
        """Judge the whole text, without space around it."""
        return Verdict(text.strip(), countdown.grade(item.check, text))
