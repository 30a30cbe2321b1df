"""Countdown: reach a target from three numbers, each used once, in two equations."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .problem import Problem

LARGEST = 99
LARGEST_BETWEEN = 999
TARGETS = range(10, 100)
EQUATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")


def _combine(a: int, b: int) -> Iterator[tuple[str, int]]:
    """Equations over two numbers with a non-negative integer result, larger operand first."""
    a, b = max(a, b), min(a, b)
    yield f"{a}+{b}={a + b}", a + b
    yield f"{a}-{b}={a - b}", a - b
    yield f"{a}*{b}={a * b}", a * b
    if b and a % b == 0:
        yield f"{a}/{b}={a // b}", a // b


def _cost(solution: str) -> tuple[int, int, str]:
    """Prefers sums and differences, then short text, so that one solution is the reference."""
    return (solution.count("*") + solution.count("/"), len(solution), solution)


def solutions(numbers: Sequence[int]) -> dict[int, str]:
    """The preferred solution of every target in 10..99 that two or three numbers can reach."""
    best: dict[int, str] = {}
    for pair in itertools.combinations(range(len(numbers)), 2):
        rest = [number for i, number in enumerate(numbers) if i not in pair]
        for first, value in _combine(numbers[pair[0]], numbers[pair[1]]):
            if not rest and value in TARGETS:
                candidates = [(first, value)]
            elif rest and value <= LARGEST_BETWEEN:
                candidates = [(f"{first},{text}", last) for text, last in _combine(value, rest[0])]
            else:
                continue
            for text, target in candidates:
                if target in TARGETS and (target not in best or _cost(text) < _cost(best[target])):
                    best[target] = text
    return best


def make_problem(numbers: Sequence[int], target: int, solution: str) -> Problem:
    """Wraps the numbers, the target and one solution."""
    listed = ",".join(map(str, [*numbers, target]))
    check = {"numbers": list(numbers), "target": target}
    return Problem("countdown", f"Countdown:\n{listed}", solution, check)


def draw(rng: random.Random, size: int = 3) -> Problem:
    """One solvable problem over `size` (2 or 3) numbers of 1..99."""
    while True:
        numbers = [rng.randint(1, LARGEST) for _ in range(size)]
        reachable = solutions(numbers)
        if reachable:
            target = rng.choice(sorted(reachable))
            return make_problem(numbers, target, reachable[target])


def from_public_row(row: dict[str, Any]) -> Problem:
    """A Problem from a public row: `input` "a,b,c,target", `output` one solution."""
    *numbers, target = map(int, row["input"].split(","))
    return make_problem(numbers, target, row["output"])


def grade(check: Mapping[str, Any], completion: str) -> bool:
    """True if every equation holds, uses only numbers at hand once, and the last is the target."""
    pool = list(check["numbers"])
    value = None
    for part in completion.strip().split(","):
        match = EQUATION.fullmatch(part.strip())
        if match is None:
            return False
        a, operator, b, value = int(match[1]), match[2], int(match[3]), int(match[4])
        for operand in (a, b):
            if operand not in pool:
                return False
            pool.remove(operand)
        sums = {"+": a + b, "-": a - b, "*": a * b, "/": value if value * b == a and b else None}
        if sums[operator] != value:
            return False
        pool.append(value)
    return pool == [check["target"]]
