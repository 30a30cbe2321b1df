"""4x4 Sudoku: demo records, or public rows {"input": givens, "output": solved grid}."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...demo import sudoku
from .demo_row import HELD_OUT, demo_item, grid_or_numbers
from .protocol import Item, RowError, Verdict, text_of

GRID = re.compile(r"[0-4]{4}(\n[0-4]{4}){3}")


@dataclass(frozen=True)
class Sudoku:
    """Right if four rows of 1..4 obey the rules and keep the givens."""

    name: str = "sudoku"
    file: Path | None = HELD_OUT
    instruction: str = ""
    runs_code: bool = False

    def item(self, row: Mapping[str, Any]) -> Item | None:
        """Read either kind of row."""
        if not grid_or_numbers(row):
            return demo_item(row, self.name, {"givens": str})
        for name in ("input", "output"):
            if GRID.fullmatch(text_of(row, name)) is None:
                raise RowError(f"{name} is {row[name]!r:.40}, expected four rows of four digits")
        problem = sudoku.from_public_row(dict(row))
        return Item(None, problem.prompt, problem.answer, problem.check)

    def grade(self, item: Item, text: str) -> Verdict:
        """Judge the whole text, without space around it."""
        return Verdict(text.strip(), sudoku.grade(item.check, text))
