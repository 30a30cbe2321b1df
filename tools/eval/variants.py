"""Decode settings to compare: named in a file, or all combinations of some values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...runtime.contract import LopaError
from ...runtime.manifest import BundleManifest
from ...runtime.options import DecodeOptions, check_types, unused_settings
from .evaluate import Variant
from .rows import read_rows

BASELINE = "baseline"
MOST_VARIANTS = 500
# Settings of the task rather than of the search: the baseline shares them.
SHARED = ("max_new_tokens", "temperature", "top_k", "top_p", "seed", "stop", "strict")


def read_variants(path: Path, options: DecodeOptions) -> list[Variant]:
    """Read one `{"name": ..., settings}` object per line; the settings go over `options`.

    Raises LopaError naming every line that is wrong.
    """
    found = read_rows(path, "settings")
    faults = list(found.faults)
    variants: dict[str, Variant] = {}
    for row in found.rows:
        try:
            variant = _variant(row.data, options)
        except LopaError as error:
            faults.append(f"{row.where}: {error}")
            continue
        if variant.value in variants:
            faults.append(f"{row.where}: name {variant.value!r} is given twice")
        variants[variant.value] = variant
    if not faults and len(variants) < 2:
        faults.append(f"{path}: give at least two settings to compare")
    if faults:
        raise LopaError("; ".join(faults))
    return list(variants.values())


def check_variants(variants: Sequence[Variant], manifest: BundleManifest) -> None:
    """Raise LopaError, with the variant's name, for settings that the bundle cannot serve."""
    for variant in variants:
        try:
            variant.options.check(manifest)
        except LopaError as error:
            name = "" if variant.value is None else f"{variant.value}: "
            raise LopaError(f"{name}{error}") from None


def _variant(row: Mapping[str, Any], options: DecodeOptions) -> Variant:
    settings = dict(row)
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise LopaError('expected {"name": "...", settings}')
    if not name or not name.isprintable():
        raise LopaError(f"name is {name!r}, expected printable characters")
    changed = options.replace(**settings)
    check_types(settings)
    return Variant(name, changed)


def search_variants(
    searches: Sequence[tuple[str, Sequence[Any]]], options: DecodeOptions
) -> list[Variant]:
    """The base strategy by itself, then every combination of the values of each setting.

    A value counts only in combinations that use it; each decode is there once. Raises LopaError.
    """
    names = [name for name, _ in searches]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise LopaError(f"--search {twice[0]} is given twice; list all its values once")
    combinations = list(itertools.product(*(values for _, values in searches)))
    if len(combinations) > MOST_VARIANTS:
        raise LopaError(
            f"--search gives {len(combinations)} combinations, at most {MOST_VARIANTS}; "
            "search fewer values at a time"
        )
    shared = {name: options.given[name] for name in SHARED if name in options.given}
    variants = [Variant(BASELINE, DecodeOptions(strategy=options.rules, **shared))]
    for values in combinations:
        settings = dict(zip(names, values, strict=True))
        idle = unused_settings(options.replace(**settings))
        settings = {name: value for name, value in settings.items() if name not in idle}
        label = " ".join(f"{name}={value}" for name, value in settings.items())
        variants.append(Variant(label, options.replace(**settings)))
    unique: dict[DecodeOptions, Variant] = {}
    for variant in variants:
        unique.setdefault(variant.options, variant)
    if len(unique) < 2:
        raise LopaError("--search gives nothing but the base strategy; search other values")
    return list(unique.values())
