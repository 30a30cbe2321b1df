r"""MATH: {"problem", "solution"} with the answer in the solution's last `\boxed`, or "answer"."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .latex import last_boxed, normal_form
from .protocol import Item, RowError, Verdict, id_of, text_of

SAID = re.compile(r"answer\s+is:?\s*(.+)", re.IGNORECASE)
NEXT_PROBLEM = "\nProblem:"


@dataclass(frozen=True)
class Competition:
    """Right if the normalised answer has the same characters as the reference."""

    name: str = "math"
    file: Path | None = None
    instruction: str = "Solve the problem step by step. Put the final answer in \\boxed{}."
    runs_code: bool = False

    def item(self, row: Mapping[str, Any]) -> Item | None:
        """Read a row of MATH or of MATH-500."""
        problem = text_of(row, "problem")
        if "answer" in row:
            answer: str | None = str(row["answer"]).strip()
            solution = str(row.get("solution") or f"The answer is \\boxed{{{answer}}}.")
        else:
            solution = text_of(row, "solution")
            answer = last_boxed(solution)
        if not answer:
            raise RowError("no answer: expected an answer field or \\boxed{...} in the solution")
        name = id_of(row, "unique_id", "id")
        return Item(name, f"Problem: {problem}\nSolution:", solution, {"answer": answer})

    def grade(self, item: Item, text: str) -> Verdict:
        r"""Take the last `\boxed`, else what follows the last "answer is"."""
        text = text.partition(NEXT_PROBLEM)[0]
        answer = last_boxed(text)
        if answer is None:
            said = SAID.findall(text)
            answer = said[-1].strip() if said else None
        if answer is None:
            return Verdict("", False, "no \\boxed answer")
        return Verdict(answer, normal_form(answer) == normal_form(item.check["answer"]))
