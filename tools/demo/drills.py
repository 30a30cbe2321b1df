"""Extra training text: single equations, and Countdown with two numbers."""

from __future__ import annotations

import random

from . import countdown
from .problem import Problem


def _equation(rng: random.Random) -> str:
    kind = rng.choice("++--*/")
    if kind == "+":
        a = rng.randint(1, 97)
        b = rng.randint(1, 99 - a)
        return f"{a}+{b}={a + b}"
    if kind == "-":
        a = rng.randint(2, 99)
        b = rng.randint(1, a - 1)
        return f"{a}-{b}={a - b}"
    b = rng.randint(2, 9)
    a = rng.randint(2, 99 // b)
    return f"{a}*{b}={a * b}" if kind == "*" else f"{a * b}/{b}={a}"


def draw(rng: random.Random) -> Problem:
    """Six equations to finish, or one Countdown of two numbers."""
    if rng.random() < 0.2:
        return countdown.draw(rng, size=2)
    equations = [_equation(rng) for _ in range(6)]
    asked = ",".join(equation.split("=")[0] for equation in equations)
    return Problem("drills", f"Work out:\n{asked}", "\n".join(equations), {})
