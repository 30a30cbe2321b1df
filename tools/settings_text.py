"""The declared decode settings in words: help of flags, the documentation's table, a schema."""

from __future__ import annotations

from typing import Any

from ..runtime.setting import MAX_COUNT, Setting, listed, settings_of
from ..runtime.strategies.registry import BASES, LOOKAHEADS, SHARED, Declared, declared

SCHEMA_VERSION = 1


def flag_help(name: str, flag: str) -> str:
    """Help of a flag: who has the setting, what it means, what it may be, its default."""
    entries = declared()[name]
    if flag != f"--{name.replace('_', '-')}":
        return f"the same setting as --{name.replace('_', '-')}{_values(entries[0].setting)}"
    texts = []
    for meaning in dict.fromkeys(entry.setting.meaning for entry in entries):
        alike = [entry for entry in entries if entry.setting.meaning == meaning]
        by_values: dict[str, list[str]] = {}
        for entry in alike:
            by_values.setdefault(_values(entry.setting), []).extend(entry.owners)
        if len(by_values) == 1 and len(entries) == 1:
            text = f"{_head(alike[0])}{meaning}{next(iter(by_values))}"
        else:
            parts = [f"{', '.join(owners)}{values}" for values, owners in by_values.items()]
            text = f"{_head_of(_needs(alike[0].setting))}{meaning}; {'; '.join(parts)}"
        texts.append(text)
    return "; ".join(texts).replace("%", "%%")


def table() -> list[tuple[str, str, str, str, str]]:
    """Rows of setting, strategies that have it, meaning, values and default."""
    rows = []
    for name, entries in declared().items():
        for entry in entries:
            item = entry.setting
            meaning = f"{_head_of(_needs(item))}{item.meaning}"
            rows.append(
                (name, ", ".join(entry.owners) or "all", meaning, _range(item), _default(item))
            )
    return rows


def markdown() -> str:
    """The table as Markdown."""
    head = ("setting", "of", "meaning", "values", "default")
    lines = [head, tuple("---" for _ in head)]
    lines += [(f"`{name}`", *rest) for name, *rest in table()]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def schema() -> dict[str, Any]:
    """Everything a host needs to read, check and default settings.

    `shared` are of every decode; `strategies` run by themselves, `lookaheads` over the one that
    the setting `base` names. A setting counts only where those in `used_with` have such values.
    """

    def records(*found: type) -> list[dict[str, Any]]:
        return [item.record() for group in found for item in settings_of(group)]

    return {
        "schema": SCHEMA_VERSION,
        "shared": records(*SHARED),
        "lookaheads": {name: records(*found) for name, found in LOOKAHEADS.items()},
        "strategies": {
            name: {"trained_for": group.trained_for, "settings": records(group)}
            for name, group in BASES.items()
        },
    }


def _head(entry: Declared) -> str:
    some = entry.owners and entry.owners != tuple(BASES)
    words = [f"of {', '.join(entry.owners)}"] if some else []
    return _head_of([*words, *_needs(entry.setting)])


def _needs(item: Setting) -> list[str]:
    return [
        f"with --{name.replace('_', '-')} {' or '.join(listed(values))}"
        for name, values in item.needs.items()
    ]


def _head_of(words: list[str]) -> str:
    return f"{' '.join(words)}: " if words else ""


def _values(item: Setting) -> str:
    """Choices and default, as a flag's help ends."""
    if not item.choices or (len(item.choices) == 1 and item.default is None):
        default = _default(item)
        return f" (default {default})" if item.default is not None else f" (default: {default})"
    shown = [f"{choice} (default)" if choice == item.default else choice for choice in item.choices]
    *some, last = shown
    text = f": {', '.join(some)} or {last}" if some else f": {last}"
    return text if item.default is not None else f"{text} (default: {item.shown})"


def _range(item: Setting) -> str:
    """What a setting may be."""
    if item.choices:
        return ", ".join(item.choices)
    if item.kind is bool:
        return "true, false"
    low = f"above {item.above:g}" if item.above is not None else f"{item.least:g}"
    if item.most is not None and item.most != MAX_COUNT:
        return f"{low} to {item.most:g}"
    return low if item.above is not None else f"{low} or more"


def _default(item: Setting) -> str:
    if item.default is None:
        return item.shown
    if isinstance(item.default, bool):
        return "on" if item.default else "off"
    return f"{item.default:g}" if isinstance(item.default, int | float) else str(item.default)
