"""What a task decides: how a row becomes a prompt, and whether an answer is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ....runtime.contract import LopaError


class RowError(LopaError):
    """A row of a problem file that the task cannot use."""


@dataclass(frozen=True)
class Item:
    """One problem: the bare prompt, a reference answer for examples, what the grader needs."""

    id: str | None  # None: the loader makes one from the task's name and the row's number
    prompt: str
    solution: str
    check: Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """A graded answer: what was taken from the text, whether it is right, why it is not."""

    answer: str
    correct: bool
    detail: str = ""


class Task(Protocol):
    """One kind of problem.

    A prompt is the instruction, worked examples, then the problem; with `--raw` the instruction is
    left out and the text goes to the model without a chat template.
    """

    @property
    def name(self) -> str:
        """Its name on the command line."""

    @property
    def file(self) -> Path | None:
        """Problems used when none are given; None: the user must give a file."""

    @property
    def instruction(self) -> str:
        """What a chat model is told before the problem; may be empty."""

    @property
    def runs_code(self) -> bool:
        """Whether grading runs the answer as a program."""

    def item(self, row: Mapping[str, Any]) -> Item | None:
        """Read a row; None if it belongs to another task. Raises RowError."""

    def grade(self, item: Item, text: str) -> Verdict:
        """Clean and judge the decoded text."""


def text_of(row: Mapping[str, Any], *names: str) -> str:
    """The first of the fields `names` that the row has, as non-empty text; raises RowError."""
    name = next((name for name in names if name in row), None)
    if name is None:
        raise RowError(f"expected {' or '.join(names)}, found {', '.join(row) or 'no keys'}")
    value = row[name]
    if not isinstance(value, str) or not value.strip():
        raise RowError(f"{name} is {value!r:.40}, expected text")
    return value


def texts_of(row: Mapping[str, Any], name: str) -> list[str]:
    """Field `name` as a list of texts; raises RowError."""
    value = row.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise RowError(f"{name} is {value!r:.40}, expected a list of texts")
    return value


def id_of(row: Mapping[str, Any], *names: str) -> str | None:
    """The row's own id, if it has one of the fields `names`."""
    found = next((row[name] for name in names if row.get(name) is not None), None)
    return None if found is None else str(found)
