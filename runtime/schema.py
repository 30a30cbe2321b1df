"""JSON checked against frozen dataclasses: unknown and missing keys, and types, with their path."""

from __future__ import annotations

import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

MAX_INTEGER = 2**63 - 1  # what other languages can hold


def decode(expected: Any, value: Any, where: str, faults: list[str]) -> Any:
    """Turn JSON `value` at the path `where` into the type `expected`; faults are appended.

    A dataclass may have a method `faults`, which lists contradictions between its fields.
    """
    if is_dataclass(expected):
        return _decode_dataclass(typing.cast(type, expected), value, where, faults)
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return decode(arguments[0], value, where, faults)
    if origin is tuple and isinstance(value, list):
        return tuple(
            decode(arguments[0], item, f"{where}[{index}]", faults)
            for index, item in enumerate(value)
        )
    if origin is dict and isinstance(value, dict):
        return {
            key: decode(arguments[1], item, f"{where}.{key}", faults) for key, item in value.items()
        }
    plain = origin or expected
    if plain in (tuple, dict) or type(value) is not plain:
        faults.append(f"{where} is {type(value).__name__}, expected {_type_name(expected)}")
    elif plain is int and abs(value) > MAX_INTEGER:
        faults.append(f"{where} is a number of {value.bit_length()} bits, expected at most 63")
    return value


def _decode_dataclass(cls: type, value: Any, where: str, faults: list[str]) -> Any:
    if not isinstance(value, dict):
        faults.append(f"{where} is {type(value).__name__}, expected an object")
        return None
    prefix = f"{where}." if where else ""
    hints = typing.get_type_hints(cls)
    names = {field.name for field in fields(cls)}
    faults.extend(f"unknown key {prefix}{name}" for name in sorted(value.keys() - names))
    optional = {field.name for field in fields(cls) if field.default is not MISSING}
    missing = sorted(names - optional - value.keys())
    faults.extend(f"key {prefix}{name} is missing" for name in missing)
    before = len(faults)
    decoded = {
        name: decode(hints[name], value[name], f"{prefix}{name}", faults)
        for name in names
        if name in value
    }
    if missing or len(faults) > before:
        return None
    made = cls(**decoded)
    check = getattr(made, "faults", None)
    if check is not None:
        faults.extend(f"{prefix.rstrip('.') or cls.__name__}: {fault}" for fault in check())
    return made


def _type_name(expected: Any) -> str:
    return getattr(expected, "__name__", None) or str(expected)
