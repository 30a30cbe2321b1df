"""Decode settings to compare: named in a file, or all combinations of some values."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ...runtime.contract import LopaError
from ...runtime.options import DecodeOptions
from ...runtime.strategies.choice import unused_settings
from .evaluate import Variant
from .sweep import parse_values

BASELINE = "baseline"
MOST_VARIANTS = 500
# Settings of the task rather than of the search: the baseline shares them.
SHARED = ("max_new_tokens", "temperature", "top_k", "top_p", "seed", "stop", "strict")


def read_variants(path: Path, options: DecodeOptions) -> list[Variant]:
    """Read one `{"name": ..., settings}` object per line; the settings go over `options`.

    Raises LopaError naming every line that is wrong.
    """
    variants: list[Variant] = []
    faults = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not isinstance(row.get("name"), str):
            faults.append(f'{path}:{number}: expected {{"name": "...", settings}}')
            continue
        name = row.pop("name")
        try:
            variants.append(Variant(name, with_settings(options, row)))
        except LopaError as error:
            faults.append(f"{path}:{number}: {error}")
        if name in [variant.value for variant in variants[:-1]]:
            faults.append(f"{path}:{number}: name {name!r} is given twice")
    if not faults and len(variants) < 2:
        faults.append(f"{path}: give at least two settings to compare")
    if faults:
        raise LopaError("; ".join(faults))
    return variants


def search_variants(searches: Sequence[str], options: DecodeOptions) -> list[Variant]:
    """The base strategy by itself, then every combination of the values of `FIELD=a,b,...`.

    A value counts only in combinations that use it.
    """
    found = [parse_values(text) for text in searches]
    names = [name for name, _ in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise LopaError(f"--search {twice[0]} is given twice; list all its values once")
    combinations = list(itertools.product(*(values for _, values in found)))
    if len(combinations) > MOST_VARIANTS:
        raise LopaError(
            f"--search gives {len(combinations)} combinations, at most {MOST_VARIANTS}; "
            "search fewer values at a time"
        )
    shared = {name: getattr(options, name) for name in SHARED}
    variants = [Variant(BASELINE, DecodeOptions(strategy=options.rules, **shared))]
    for values in combinations:
        settings = dict(zip(names, values, strict=True))
        idle = unused_settings(replace(options, **settings))
        settings = {name: value for name, value in settings.items() if name not in idle}
        label = " ".join(f"{name}={value}" for name, value in settings.items())
        variants.append(Variant(label, replace(options, **settings)))
    return list({variant.value: variant for variant in variants}.values())


def with_settings(options: DecodeOptions, settings: Mapping[str, Any]) -> DecodeOptions:
    """`options` with some fields replaced; raises LopaError for a name that is none."""
    known = sorted(field.name for field in fields(DecodeOptions))
    unknown = sorted(settings.keys() - set(known))
    if unknown:
        raise LopaError(f"unknown setting {', '.join(unknown)}; known: {', '.join(known)}")
    return replace(options, **settings)


def changed_settings(options: DecodeOptions) -> dict[str, Any]:
    """The settings that differ from the defaults."""
    return {
        field.name: getattr(options, field.name)
        for field in fields(DecodeOptions)
        if getattr(options, field.name) != field.default
    }
