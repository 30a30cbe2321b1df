from __future__ import annotations

from typing import Any

import pytest
from lopa.tools.eval.tasks.code_text import code_of, completed
from lopa.tools.eval.tasks.protocol import Item, RowError
from lopa.tools.eval.tasks.registry import TASKS

PROMPT = 'from math import floor\n\ndef half(x):\n    """Half of x, rounded down."""\n'
BODY = "    return floor(x / 2)\n"
HUMANEVAL = {
    "task_id": "Test/0",
    "prompt": PROMPT,
    "entry_point": "half",
    "canonical_solution": BODY,
    "test": "def check(candidate):\n    assert candidate(5) == 2\n    assert candidate(-1) == -1\n",
}
MBPP = {
    "task_id": 11,
    "text": "Write a function to double a number.",
    "code": "def double(x):\r\n  return 2 * x",
    "test_setup_code": "",
    "test_list": ["assert double(2) == 4", "assert abs(double(-1)) == 2"],
}
FENCED = "Here:\n```python\ndef half(x):\n    return x // 2\n```\nIt works."


def item_of(task: str, row: dict[str, Any]) -> Item:
    item = TASKS[task].item(row)
    assert item is not None
    return item


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("def f(x):\n    return x", "def f(x):\n    return x"),
        ("```\nx = 1\n```\n```py\ndef f():\n    pass\n```", "def f():\n    pass"),
        ("Sure!\nimport os\ndef f():\n    pass\nThat is it.", "import os\ndef f():\n    pass"),
        ("[BEGIN]\ndef f():\n    pass\n[DONE] more", "def f():\n    pass"),
        ("```python\ndef f():\n    pass", "def f():\n    pass"),
        ("nothing here", "nothing here"),
        ("", ""),
    ],
)
def test_code_of(text: str, code: str) -> None:
    assert code_of(text, "f") == code


@pytest.mark.parametrize(
    ("text", "program"),
    [
        (BODY + "\nprint(half(3))", PROMPT + BODY),
        ("return floor(x / 2)", PROMPT + BODY),
        (FENCED, "from math import floor\n\ndef half(x):\n    return x // 2"),
        ("```python\n    return 1\n```", PROMPT + "    return 1"),
    ],
)
def test_completed(text: str, program: str) -> None:
    assert completed(PROMPT, text, "half") == program.rstrip()


@pytest.mark.parametrize(
    ("text", "correct", "detail"),
    [
        (BODY, True, ""),
        (FENCED, True, ""),
        ("    return x / 2", False, "AssertionError"),
        ("    return floor(x / 2", False, "SyntaxError: '(' was never closed (<answer>, line 5)"),
        ("    raise SystemExit(0)", False, "SystemExit: 0"),
    ],
)
def test_humaneval(text: str, correct: bool, detail: str) -> None:
    item = item_of("humaneval", HUMANEVAL)
    assert (item.id, item.prompt) == ("Test/0", PROMPT)
    verdict = TASKS["humaneval"].grade(item, text)
    assert (verdict.correct, verdict.detail) == (correct, detail)


def test_mbpp() -> None:
    item = item_of("mbpp", MBPP)
    assert (item.id, item.check["entry"]) == ("11", "double")
    assert "assert double(2) == 4" in item.prompt
    assert TASKS["mbpp"].grade(item, item.solution).correct
    other = "def double(x):\n    return x + x\nTask: another\nCode: def double(x): pass"
    assert TASKS["mbpp"].grade(item, other).correct
    verdict = TASKS["mbpp"].grade(item, "def double(x):\n    return x * x")
    assert (verdict.correct, verdict.detail) == (False, "AssertionError")


def test_mbpp_sanitised_has_imports() -> None:
    row = {
        "task_id": 2,
        "prompt": "Root.",
        "code": "",
        "test_imports": ["import math"],
        "test_list": ["assert math.isclose(root(4), 2)"],
    }
    item = item_of("mbpp", row)
    assert item.check["entry"] == "root"
    assert TASKS["mbpp"].grade(item, "```\ndef root(x):\n    return x ** 0.5\n```").correct
    with pytest.raises(RowError, match="test_list is None, expected a list of texts"):
        TASKS["mbpp"].item({"task_id": 2, "prompt": "Root."})


@pytest.mark.parametrize(
    ("text", "correct", "detail"),
    [
        ("def f(x):\n    return [x, x]", True, ""),
        ("def f(x):\n    return (x, x)", True, ""),
        ("def f(x):\n    return [x, True]", False, "AssertionError: 1 gives [1, True]"),
        ("def g(x):\n    return x", False, "NameError: name 'f' is not defined"),
    ],
)
def test_functions(text: str, correct: bool, detail: str) -> None:
    item = Item("a", "p", "", {"entry": "f", "tests": [[1, [1, 1]], [2, [2, 2]]]})
    verdict = TASKS["functions"].grade(item, text)
    assert (verdict.correct, verdict.detail) == (correct, detail)
