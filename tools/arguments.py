"""Types of command-line values, with messages that say what was expected."""

from __future__ import annotations

import argparse
import math
import os
from typing import TypeVar

Number = TypeVar("Number", int, float)


def positive(text: str) -> int:
    """An integer of 1 or more."""
    return _at_least(1, _integer(text), text)


def natural(text: str) -> int:
    """An integer of 0 or more."""
    return _at_least(0, _integer(text), text)


def number(text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}")
    return value


def amount(text: str) -> float:
    """A finite number of 0 or more."""
    return _at_least(0, number(text), text)


def share(text: str) -> float:
    """A number from 0 to 1."""
    value = number(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected 0 to 1, got {text}")
    return value


def positives(text: str) -> tuple[int, ...]:
    """Integers of 1 or more, separated by commas; ascending, each once."""
    return tuple(sorted({positive(part.strip()) for part in text.split(",")}))


def naturals(text: str) -> tuple[int, ...]:
    """Integers of 0 or more, separated by commas; ascending, each once."""
    return tuple(sorted({natural(part.strip()) for part in text.split(",")}))


def text(given: str) -> str:
    """Text for a model; what the locale cannot read is taken for UTF-8."""
    try:
        given.encode("utf-8")
    except UnicodeEncodeError:
        return os.fsencode(given).decode("utf-8", "surrogateescape")
    return given


def _at_least(least: int, value: Number, text: str) -> Number:
    if value < least:
        raise argparse.ArgumentTypeError(f"expected {least} or more, got {text}")
    return value


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None
