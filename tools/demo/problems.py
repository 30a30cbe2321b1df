"""Seeded generators and graders of the four demo tasks."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from . import countdown, drills, functions, sudoku, words
from .problem import Problem, is_held_out

TASKS = ("words", "sudoku", "countdown", "functions")

_DRAW: dict[str, Callable[[random.Random], Problem]] = {
    "words": words.draw,
    "sudoku": sudoku.draw,
    "countdown": countdown.draw,
    "functions": functions.draw,
    "drills": drills.draw,
}
_GRADE: dict[str, Callable[[Problem, str], bool]] = {
    "words": words.grade,
    "sudoku": sudoku.grade,
    "countdown": countdown.grade,
    "functions": functions.grade,
}


def generate(task: str, seed: int, count: int, held_out: bool = False) -> list[Problem]:
    """`count` problems of one task (or of `drills`), all from one side of the held-out split.

    Held-out problems have distinct prompts; training problems may repeat.
    """
    rng = random.Random(f"{task}-{seed}-{held_out}")
    problems: list[Problem] = []
    seen: set[str] = set()
    while len(problems) < count:
        problem = _DRAW[task](rng)
        if is_held_out(problem.prompt) != held_out or problem.prompt in seen:
            continue
        if held_out:
            seen.add(problem.prompt)
        problems.append(problem)
    return problems


def grade(problem: Problem, completion_text: str) -> bool:
    """True if the completion (text up to the first end-of-text) solves the problem."""
    return _GRADE[problem.task](problem, completion_text)


def load_public(path: Path) -> list[Problem]:
    """Problems from a public Sudoku or Countdown file (`sudoku_*.jsonl`, `cd*.jsonl`).

    Raises ValueError for a file of another name.
    """
    if path.name.startswith("sudoku"):
        convert = sudoku.from_public_row
    elif path.name.startswith("cd"):
        convert = countdown.from_public_row
    else:
        raise ValueError(f"{path.name}: expected a name starting with sudoku or cd")
    return [convert(json.loads(line)) for line in path.read_text().splitlines() if line.strip()]
