"""Small Python functions from a one-sentence description, and calls that test them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from .problem import Problem

TEST_COUNT = 6
VERBS = ("get", "make", "find", "calc", "take", "pick")
NOUNS = ("result", "value", "items", "answer", "output", "data")
LISTS = ("xs", "nums", "values", "items", "data")
SCALARS = ("x", "n", "a", "k", "num")
TEXTS = ("s", "text", "word", "name")
LETTERS = "aeinorst"
WORDS = ("", "tree", "a", "stone", "banana", "notes", "risotto", "orient", "is")

FILTERS: tuple[tuple[str, str], ...] = (
    ("", ""),
    ("even ", "{v} % 2 == 0"),
    ("odd ", "{v} % 2 == 1"),
    ("positive ", "{v} > 0"),
    ("negative ", "{v} < 0"),
    ("greater", "{v} > {c}"),
    ("smaller", "{v} < {c}"),
    ("divisible", "{v} % {c} == 0"),
)
FILTER_PHRASES = {
    "greater": "numbers in {l} greater than {c}",
    "smaller": "numbers in {l} smaller than {c}",
    "divisible": "numbers in {l} divisible by {c}",
}
MAPS: tuple[tuple[str, str], ...] = (
    ("squares", "{v} * {v}"),
    ("doubles", "2 * {v}"),
    ("negatives", "-{v}"),
    ("plus", "{v} + {d}"),
    ("times", "{v} * {d}"),
)
SCALAR_FUNCTIONS: tuple[tuple[str, str], ...] = (
    ("returns {x} plus {c}", "return {x} + {c}"),
    ("returns {x} minus {c}", "return {x} - {c}"),
    ("returns {c} times {x} plus {d}", "return {c} * {x} + {d}"),
    ("returns the remainder of {x} divided by {c}", "return {x} % {c}"),
    ("returns True if {x} is divisible by {c}", "return {x} % {c} == 0"),
    ("returns True if {x} is greater than {c}", "return {x} > {c}"),
    ("returns the larger of {x} and {c}", "if {x} > {c}:\n        return {x}\n    return {c}"),
    ("returns the smaller of {x} and {c}", "if {x} < {c}:\n        return {x}\n    return {c}"),
    ("returns the absolute value of {x}", "if {x} < 0:\n        return -{x}\n    return {x}"),
    (
        "returns the sum of the numbers from 1 to {x}",
        "total = 0\n    for i in range(1, {x} + 1):\n        total += i\n    return total",
    ),
    (
        "returns the factorial of {x}",
        "total = 1\n    for i in range(1, {x} + 1):\n        total *= i\n    return total",
    ),
    ("returns the list of numbers from 0 to {x}", "return list(range({x} + 1))"),
    (
        "returns the multiples of {c} below {x}",
        "return [i for i in range({x}) if i % {c} == 0]",
    ),
)
TEXT_FUNCTIONS: tuple[tuple[str, str], ...] = (
    ("returns {s} reversed", "return {s}[::-1]"),
    ("returns {s} in upper case", "return {s}.upper()"),
    ("returns {s} repeated {c} times", "return {s} * {c}"),
    ("returns the first {c} letters of {s}", "return {s}[:{c}]"),
    ("returns the last {c} letters of {s}", "return {s}[-{c}:]"),
    ("returns {s} without its first {c} letters", "return {s}[{c}:]"),
    ('returns how many times "{t}" occurs in {s}', 'return {s}.count("{t}")'),
    ('returns True if {s} starts with "{t}"', 'return {s}.startswith("{t}")'),
    ('returns True if {s} ends with "{t}"', 'return {s}.endswith("{t}")'),
    ('returns True if {s} contains "{t}"', 'return "{t}" in {s}'),
    ('replaces every "{t}" in {s} by "{u}"', 'return {s}.replace("{t}", "{u}")'),
    ('returns {s} without the letter "{t}"', 'return {s}.replace("{t}", "")'),
    ("returns True if {s} is the same when reversed", "return {s} == {s}[::-1]"),
    ("returns the length of {s} plus {c}", "return len({s}) + {c}"),
)


def _list_function(rng: random.Random) -> tuple[str, str]:
    """Description and body of: keep some numbers, change them, collect or reduce them."""
    kind, condition = rng.choice(FILTERS)
    group = FILTER_PHRASES.get(kind, kind + "numbers in {l}")
    goal = rng.choice(("list", "map", "map", "sum", "count", "largest", "product"))
    value = "{v}"
    if goal == "map":
        kind, value = rng.choice(MAPS)
        group = {
            "plus": f"{group}, each plus {{d}}",
            "times": f"{group}, each times {{d}}",
        }.get(kind, f"{kind} of the {group}")
    what = {"list": "a list of the ", "map": "the ", "largest": "the largest of the "}.get(
        goal, f"the {goal} of the "
    )
    loop = goal == "product" or (goal != "largest" and rng.random() < 0.5)
    start, change = {
        "sum": ("0", "total += {v}"),
        "count": ("0", "total += 1"),
        "product": ("1", "total *= {v}"),
    }.get(goal, ("[]", f"total.append({value})"))
    if loop:
        inner = f"if {condition}:\n            {change}" if condition else change
        body = f"total = {start}\n    for {{v}} in {{l}}:\n        {inner}\n    return total"
    else:
        tail = f" for {{v}} in {{l}} if {condition}" if condition else " for {v} in {l}"
        whole = f"[{value}{tail}]" if condition or goal == "map" else "{l}"
        body = {
            "list": f"return {whole}" if condition else "return list({l})",
            "map": f"return {whole}",
            "sum": f"return sum({whole})",
            "count": f"return len({whole})",
            "largest": f"return max({whole}, default=0)",
        }[goal]
    hint = " Use a loop." if loop else ""
    return f"returns {what}{group}.{hint}", body


def _tests(rng: random.Random, code: str, entry: str, sample: Callable[[], Any]) -> list[list[Any]]:
    """[[argument, expected], ...] from running the reference itself."""
    namespace: dict[str, Any] = {}
    exec(code, namespace)  # the reference text comes from the tables above
    return [[value, namespace[entry](value)] for value in (sample() for _ in range(TEST_COUNT))]


def draw(rng: random.Random) -> Problem:
    """One function with its description and six test calls."""
    name = f"{rng.choice(VERBS)}_{rng.choice(NOUNS)}"
    t, u = rng.sample(LETTERS, 2)
    slots = {"c": rng.randint(2, 9), "d": rng.randint(2, 9), "t": t, "u": u}
    kind = rng.choice(("list", "list", "list", "scalar", "text"))
    sample: Callable[[], Any]
    if kind == "list":
        argument = rng.choice(LISTS)
        slots |= {"l": argument, "v": "x"}
        text, body = _list_function(rng)

        def sample() -> list[int]:
            return [rng.randint(-12, 12) for _ in range(rng.randint(0, 6))]

    elif kind == "scalar":
        argument = rng.choice(SCALARS)
        text, body = rng.choice(SCALAR_FUNCTIONS)
        text, slots["x"] = text + ".", argument

        def sample() -> int:
            return rng.randint(0, 15)

    else:
        argument = rng.choice(TEXTS)
        text, body = rng.choice(TEXT_FUNCTIONS)
        text, slots["s"] = text + ".", argument

        def sample() -> str:
            return rng.choice(WORDS)

    prompt = f"Write a Python function {name}({argument}) that {text.format(**slots)}"
    answer = f"def {name}({argument}):\n    {body.format(**slots)}"
    check = {"entry": name, "tests": _tests(rng, answer, name, sample)}
    return Problem("functions", prompt, answer, check)
