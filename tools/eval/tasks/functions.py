"""Small Python functions of the demo model, graded by running them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..sandbox import run_program
from .code_text import code_of
from .demo_row import HELD_OUT, demo_item
from .protocol import Item, Verdict

# Results go through JSON on both sides, so that a tuple equals a list but True is not 1.
TEST = """
import json
for argument, expected in json.loads({tests!r}):
    result = json.loads(json.dumps({entry}(argument)))
    assert repr(result) == repr(expected), f"{{argument!r}} gives {{result!r}}"
"""


@dataclass(frozen=True)
class Functions:
    """Right if the function returns what it should for every test argument."""

    name: str = "functions"
    file: Path | None = HELD_OUT
    instruction: str = ""
    runs_code: bool = True

    def item(self, row: Mapping[str, Any]) -> Item | None:
        """Read a demo record."""
        return demo_item(row, self.name, {"entry": str, "tests": list})

    def grade(self, item: Item, text: str) -> Verdict:
        """Run the function on the test arguments."""
        code = code_of(text, item.check["entry"])
        tests = json.dumps(item.check["tests"])
        outcome = run_program(code + TEST.format(tests=tests, entry=item.check["entry"]))
        return Verdict(code, outcome.passed, outcome.detail)
