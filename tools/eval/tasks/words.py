"""Arithmetic word problems of the demo model; the answer ends in `answer: N`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...demo import words
from .demo_row import HELD_OUT, demo_item
from .protocol import Item, Verdict

ANSWER = re.compile(r"answer:\s*(\S+)")


@dataclass(frozen=True)
class Words:
    """Right if the number after the last `answer:` is the expected one."""

    name: str = "words"
    file: Path | None = HELD_OUT
    instruction: str = ""
    runs_code: bool = False

    def item(self, row: Mapping[str, Any]) -> Item | None:
        """Read a demo record."""
        return demo_item(row, self.name, {"answer": int})

    def grade(self, item: Item, text: str) -> Verdict:
        """Take the word after the last `answer:`."""
        found = ANSWER.findall(text)
        if not found:
            return Verdict("", False, "no 'answer:'")
        return Verdict(found[-1], words.grade(item.check, text))
