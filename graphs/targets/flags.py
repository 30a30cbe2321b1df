"""Builder settings that are flags of `lopa build`: each is declared where the setting is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Flag:
    """How a setting is spelled and explained; its type is that of the field.

    `spellings` begin with the kebab-case one; errors name the last, which is the library's own.
    `choices` of texts are taken in kebab, camel and snake case. `parse` turns the text into the
    value, and raises LopaError, where the type of the field does not say how.
    """

    spellings: tuple[str, ...]
    help: str
    metavar: str | None = None
    choices: Sequence[Any] | None = None
    parse: Callable[[str], Any] | None = None

    @property
    def name(self) -> str:
        """What errors call it."""
        return self.spellings[-1]


def flag(
    *spellings: str,
    help: str,
    metavar: str | None = None,
    choices: Sequence[Any] | None = None,
    parse: Callable[[str], Any] | None = None,
) -> dict[str, Flag]:
    """Metadata of a dataclass field: its flag (see `Flag`)."""
    return {"flag": Flag(spellings, help, metavar, choices, parse)}


def flags_of(settings: type[Any] | None) -> dict[str, Flag]:
    """Flags of a settings dataclass by field, in order; none where a target has no settings."""
    fields = () if settings is None else dataclasses.fields(settings)
    return {item.name: item.metadata["flag"] for item in fields if "flag" in item.metadata}
