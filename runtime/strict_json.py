"""JSON as the standard has it: what Python reads or fails on beyond it is one described fault."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from .bounded_file import read_bounded
from .contract import LopaError

MAX_BYTES = 1 << 28  # of a file
MAX_DIGITS = 1000  # of a whole number; Python's own limit is the interpreter's


def parse_json(text: str) -> Any:
    """Parse `text`; raises LopaError with what is wrong and, where it is known, the column."""
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_refuse,
            parse_float=_finite,
            parse_int=_short_integer,
        )
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise LopaError(f"not valid JSON ({error.msg} at {line}column {error.colno})") from None
    except RecursionError:
        raise LopaError("not valid JSON (nested too deeply)") from None


def read_json(path: Path) -> Any:
    """Parse a file of UTF-8 text, with or without a byte order mark; its faults name the file."""
    try:
        return parse_json(read_bounded(path, MAX_BYTES).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise LopaError(f"{path} is not UTF-8 text (byte {error.start})") from None
    except LopaError as error:
        raise LopaError(f"{path}: {error}") from None


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        name, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise LopaError(f"not valid JSON (key {name!r:.40} is given twice)")
    return found


def _refuse(name: str) -> NoReturn:
    raise LopaError(f"not valid JSON ({name} is no JSON value)")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise LopaError(f"not valid JSON ({digits:.20} is too large a number)")
    return value


def _short_integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise LopaError(f"not valid JSON (a number of {len(digits)} digits)")
    return int(digits)
