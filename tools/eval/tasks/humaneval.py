"""HumanEval: {"task_id", "prompt", "entry_point", "canonical_solution", "test"}."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..sandbox import run_program
from .code_text import completed
from .protocol import Item, Verdict, id_of, text_of


@dataclass(frozen=True)
class HumanEval:
    """Right if the completed function passes its `check`."""

    name: str = "humaneval"
    file: Path | None = None
    instruction: str = "Complete this Python function. Answer with the whole function as code."
    runs_code: bool = True

    def item(self, row: Mapping[str, Any]) -> Item | None:
        """Read a row of the published file."""
        check = {"entry": text_of(row, "entry_point"), "test": text_of(row, "test")}
        solution = str(row.get("canonical_solution", ""))
        return Item(id_of(row, "task_id"), text_of(row, "prompt"), solution, check)

    def grade(self, item: Item, text: str) -> Verdict:
        """Run the program, its test and the call of the test."""
        entry, test = item.check["entry"], item.check["test"]
        code = completed(item.prompt, text, entry)
        outcome = run_program(f"{code}\n\n{test}\n\ncheck({entry})\n")
        return Verdict(code, outcome.passed, outcome.detail)
