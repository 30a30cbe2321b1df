"""MBPP: {"task_id", "text" or "prompt", "code", "test_list"}, full or sanitised."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..sandbox import run_program
from .code_text import code_of
from .protocol import Item, RowError, Verdict, id_of, text_of, texts_of

# The function under test: the first call inside an assertion that is no wrapper around it.
CALL = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
WRAPPERS = {"assert", "abs", "set", "sorted", "list", "tuple", "round", "str", "len", "isclose"}


@dataclass(frozen=True)
class Mbpp:
    """Right if the program passes every assertion."""

    name: str = "mbpp"
    file: Path | None = None
    instruction: str = "Write the Python function. Answer with code only."
    runs_code: bool = True

    def item(self, row: Mapping[str, Any]) -> Item | None:
        """Read a row of either file; the assertions are shown in the prompt, as is usual."""
        tests = texts_of(row, "test_list")
        if not tests:
            raise RowError("test_list is empty, expected assertions")
        setup = [*(texts_of(row, "test_imports") if "test_imports" in row else [])]
        setup += [row["test_setup_code"]] if row.get("test_setup_code") else []
        task, code = text_of(row, "text", "prompt"), str(row.get("code", ""))
        shown = "\n".join(tests)
        return Item(
            id_of(row, "task_id"),
            f"Task: {task.strip()}\nIt must pass these tests:\n{shown}\nCode:",
            f"```python\n{code.strip()}\n```",
            {"entry": tested_function(tests), "setup": setup, "tests": tests},
        )

    def grade(self, item: Item, text: str) -> Verdict:
        """Run the program, then the assertions."""
        code = code_of(text.partition("\nTask:")[0], item.check["entry"])
        outcome = run_program("\n".join([*item.check["setup"], code, *item.check["tests"]]))
        return Verdict(code, outcome.passed, outcome.detail)


def tested_function(tests: list[str]) -> str:
    """Name of the function that the assertions call."""
    names = [name for name in CALL.findall(tests[0]) if name not in WRAPPERS]
    return names[0] if names else ""
