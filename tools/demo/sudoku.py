"""4x4 Sudoku: rows of digits, 0 for an empty cell, always exactly one solution."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .problem import Problem

MIN_GIVENS, MAX_GIVENS = 4, 12
UNITS = np.array(
    [[4 * r + c for c in range(4)] for r in range(4)]
    + [[4 * r + c for r in range(4)] for c in range(4)]
    + [[8 * i + 2 * j + k for k in (0, 1, 4, 5)] for i in range(2) for j in range(2)]
)


@cache
def solved_grids() -> NDArray[np.int8]:
    """All 288 solved grids, int8 [288, 16]."""
    rows = list(itertools.permutations((1, 2, 3, 4)))
    grids = np.array(
        [sum(choice, ()) for choice in itertools.product(rows, repeat=4)], dtype=np.int8
    )
    sorted_units = np.sort(grids[:, UNITS], axis=-1)
    return np.ascontiguousarray(grids[(sorted_units == [1, 2, 3, 4]).all(axis=(1, 2))])


def solution_count(cells: NDArray[np.int8]) -> int:
    """How many solved grids agree with the given cells [16] (0 = free)."""
    given = cells > 0
    return int((solved_grids()[:, given] == cells[given]).all(axis=1).sum())


def _render(cells: NDArray[np.int8]) -> str:
    return "\n".join("".join(map(str, row)) for row in cells.reshape(4, 4).tolist())


def make_problem(givens: str, solution: str) -> Problem:
    """Wraps four rows of digits and their solution."""
    return Problem("sudoku", f"Sudoku:\n{givens}", solution, {"givens": givens})


def draw(rng: random.Random) -> Problem:
    """One puzzle with 4..12 givens, drawn by rejection until its solution is unique."""
    count = rng.randint(MIN_GIVENS, MAX_GIVENS)
    while True:
        grid = solved_grids()[rng.randrange(288)]
        cells = np.zeros(16, dtype=np.int8)
        kept = rng.sample(range(16), count)
        cells[kept] = grid[kept]
        if solution_count(cells) == 1:
            return make_problem(_render(cells), _render(grid))


def from_public_row(row: dict[str, Any]) -> Problem:
    """A Problem from a public row with `input` (givens) and `output` (solved grid)."""
    return make_problem(row["input"], row["output"])


def grade(check: Mapping[str, Any], completion: str) -> bool:
    """True if the text is four rows of 1..4 that obey the rules and keep the givens."""
    lines = completion.strip().split("\n")
    if [len(line) for line in lines] != [4, 4, 4, 4] or not set("".join(lines)) <= set("1234"):
        return False
    grid = np.array([int(digit) for digit in "".join(lines)])
    givens = np.array([int(digit) for digit in check["givens"].replace("\n", "")])
    rules = bool((np.sort(grid[UNITS], axis=-1) == [1, 2, 3, 4]).all())
    return rules and bool((grid[givens > 0] == givens[givens > 0]).all())
