"""Rows of a demo problem file: {"id", "task", "prompt", "answer", "check"}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...demo.run import HELD_OUT
from .protocol import Item, RowError, id_of, text_of

__all__ = ["HELD_OUT", "demo_item", "grid_or_numbers"]


def demo_item(row: Mapping[str, Any], task: str, check: Mapping[str, type]) -> Item | None:
    """Read a demo row of `task` whose `check` has the given fields; None for another task's row."""
    if text_of(row, "task") != task:
        return None
    found = row.get("check")
    if not isinstance(found, dict):
        raise RowError(f"check is {found!r:.40}, expected an object")
    for name, kind in check.items():
        if not isinstance(found.get(name), kind):
            raise RowError(f"check.{name} is {found.get(name)!r:.40}, expected {kind.__name__}")
    return Item(id_of(row, "id"), text_of(row, "prompt"), text_of(row, "answer"), found)


def grid_or_numbers(row: Mapping[str, Any]) -> bool:
    """Whether this is a row of a public set: `input` and `output` instead of a demo record."""
    return "input" in row and "task" not in row
