"""JSON as the standard has it: what Python reads or fails on beyond it is one described fault."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from ..runtime.contract import LopaError

MAX_DIGITS = 1000  # of a whole number; Python's own limit is the interpreter's


def parse_json(text: str) -> Any:
    """Parse `text`; raises LopaError with what is wrong and, where it is known, the column."""
    try:
        return json.loads(
            text, parse_constant=_refuse, parse_float=_finite, parse_int=_short_integer
        )
    except json.JSONDecodeError as error:
        raise LopaError(f"not valid JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise LopaError("not valid JSON (nested too deeply)") from None


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
