"""What a setting is: declared once, as a field of a dataclass beside the algorithm that uses it.

Checks, flags and their help, settings files, sweep axes, the table of the documentation and the
schema for other hosts are all made from these declarations.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from numbers import Integral, Real
from typing import Any

MAX_COUNT = 1_000_000  # of tokens, steps, sizes

KIND_NAMES = {bool: "True or False", float: "a number", int: "a whole number", str: "a name"}
JSON_TYPES = {bool: "boolean", float: "number", int: "integer", str: "string"}

Names = Sequence[str] | Callable[[], Sequence[str]]  # called where a registry has them


@dataclass(frozen=True)
class Setting:
    """One declared setting."""

    name: str
    kind: type  # bool, int, float or str
    default: Any  # None: it depends on the bundle or on other settings, as `shown` says
    meaning: str  # one line
    shown: str  # the default in words, where it is None
    names: Names  # what a text may be
    least: float | None
    above: float | None  # exclusive
    most: float | None
    needs: Mapping[str, Names]  # it is used where these settings have one of these values
    alias: str | None  # a second flag

    @property
    def label(self) -> str:
        """Its name in messages."""
        return self.name.replace("_", " ")

    @property
    def choices(self) -> tuple[str, ...]:
        """What a text may be."""
        return listed(self.names)

    def type_fault(self, value: Any) -> str | None:
        """Say that `value` is of the wrong type, if so; NumPy's numbers are numbers."""
        if self.kind in (int, float):
            numeric = Integral if self.kind is int else Real
            fits = isinstance(value, numeric) and not isinstance(value, bool)
        else:
            fits = isinstance(value, self.kind)
        return None if fits else f"{self.label} is {value!r}, expected {KIND_NAMES[self.kind]}"

    def range_fault(self, value: Any, who: str = "expected") -> str | None:
        """Say what else `value` should have been, if so; choices are what `who` says."""
        low, high = self.least, self.most
        if self.choices and value not in self.choices:
            several = "one of: " * (len(self.choices) > 1)
            return f"{self.label} is {value!r}, {who} {several}{', '.join(self.choices)}"
        above_all = (low is None or value >= low) and (self.above is None or value > self.above)
        if self.kind not in (int, float) or (
            above_all and (high is None or value <= high) and math.isfinite(value)
        ):
            return None
        if self.above is not None:
            expected = f"more than {self.above:g}"
            if high is not None:
                expected = f"a value in ({self.above:g}, {high:g}]"
        elif self.kind is float and high is not None:
            expected = f"a value from {low:g} to {high:g}"
        else:
            expected = f"at most {high}" if low is not None and value >= low else f"{low} or more"
        return f"{self.label} is {value}, expected {expected}"

    def record(self) -> dict[str, Any]:
        """The declaration as plain data, for hosts that are not written in Python."""
        found = {
            "name": self.name,
            "type": JSON_TYPES[self.kind],
            "default": self.default,
            "default_text": self.shown or None,
            "meaning": self.meaning,
            "choices": list(self.choices) or None,
            "minimum": self.least,
            "exclusive_minimum": self.above,
            "maximum": self.most,
            "used_with": {name: list(listed(values)) for name, values in self.needs.items()},
        }
        return {name: value for name, value in found.items() if value not in (None, {})}


def setting(
    default: Any,
    meaning: str,
    *,
    shown: str = "",
    choices: Names = (),
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    needs: Mapping[str, Names] | None = None,
    alias: str | None = None,
    compare: bool = True,
) -> Any:
    """Declare a setting as the default of a dataclass field (see `Setting`)."""
    declared = {
        "meaning": meaning,
        "shown": shown,
        "names": choices,
        "least": least,
        "above": above,
        "most": most,
        "needs": needs or {},
        "alias": alias,
    }
    return field(default=default, compare=compare, metadata={"setting": declared})


def count(default: int | None, meaning: str, **more: Any) -> Any:
    """Declare a setting that counts something: from 1 to `MAX_COUNT`."""
    return setting(default, meaning, least=1, most=MAX_COUNT, **more)


def share(default: float, meaning: str, **more: Any) -> Any:
    """Declare a setting that is a share or a probability: from 0 to 1."""
    return setting(default, meaning, least=0, most=1, **more)


@cache
def settings_of(group: type) -> tuple[Setting, ...]:
    """The settings that a dataclass declares, in order; its other fields are none."""
    return tuple(_settings(group))


def listed(names: Names) -> tuple[str, ...]:
    """The names, asked for where a registry has them."""
    return tuple(names() if callable(names) else names)


def _settings(group: type) -> Iterator[Setting]:
    hints = typing.get_type_hints(group)
    for item in fields(group):
        if "setting" in item.metadata:
            kinds = typing.get_args(hints[item.name]) or (hints[item.name],)
            yield Setting(item.name, kinds[0], item.default, **item.metadata["setting"])
