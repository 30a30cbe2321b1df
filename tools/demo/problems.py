"""Seeded generators of the four demo tasks."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Collection
from pathlib import Path

from . import countdown, drills, functions, sudoku, words
from .problem import Problem, is_held_out, read_problems, write_problems

TASKS = ("words", "sudoku", "countdown", "functions")

_DRAW: dict[str, Callable[[random.Random], Problem]] = {
    "words": words.draw,
    "sudoku": sudoku.draw,
    "countdown": countdown.draw,
    "functions": functions.draw,
    "drills": drills.draw,
}


def generate(
    task: str, seed: int, count: int, held_out: bool = False, exclude: Collection[str] = ()
) -> list[Problem]:
    """`count` problems of one task (or of `drills`), all from one side of the held-out split.

    Held-out problems have distinct prompts, none of `exclude`; training problems may repeat.
    """
    rng = random.Random(f"{task}-{seed}-{held_out}")
    problems: list[Problem] = []
    seen = set(exclude)
    while len(problems) < count:
        problem = _DRAW[task](rng)
        if is_held_out(problem.prompt) != held_out or problem.prompt in seen:
            continue
        if held_out:
            seen.add(problem.prompt)
        problems.append(problem)
    return problems


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


def main() -> None:
    """Writes held-out problems of every task, for validation and tests of one's own."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=100, help="problems of each task")
    parser.add_argument("--out", type=Path, required=True, help=".jsonl file")
    parser.add_argument(
        "--exclude", type=Path, nargs="*", default=[], help="files whose problems are left out"
    )
    options = parser.parse_args()
    exclude = {problem.prompt for path in options.exclude for problem in read_problems(path)}
    problems = [
        problem
        for task in TASKS
        for problem in generate(task, options.seed, options.count, True, exclude)
    ]
    write_problems(options.out, problems)


if __name__ == "__main__":
    main()
