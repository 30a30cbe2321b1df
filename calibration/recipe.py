"""Recipes: ordered rules that give every matrix product a precision; the first match wins.

A recipe file is TOML:

    name = "mine"

    [[rule]]
    match = "layers.0.*"        # shell pattern on product names
    precision = "int8-weight"

    [[rule]]
    match = "*"
    precision = "int8"
    method = "percentile"
    smooth = 0.5
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..runtime.contract import LopaError

# From the highest to the lowest. "model" leaves a product alone; "fp16" halves the embedding
# table; the others store integers.
PRECISIONS = ("model", "fp16", "int8-weight", "int8", "int4-weight")
METHODS = ("minmax", "percentile", "entropy", "auto")
SMOOTH = ("auto", "off")
EMBEDDING = "embed"  # the product name of the embedding table
CACHE = "cache"  # the name of keys and values; patterns do not reach it
CACHE_PRECISIONS, CACHE_METHODS = ("model", "int8"), ("minmax", "percentile", "auto")
AGREEMENT, DRIFT, TOKENS = 0.997, 0.004, 0.99


@dataclass(frozen=True)
class Rule:
    """What is done with the products whose name matches.

    `method` gives the range of the activations of "int8"; "auto" takes the one of least measured
    error. `smooth` is the exponent of the scale migration, "auto" or "off".
    """

    match: str
    precision: str
    method: str = "auto"
    smooth: float | str = "auto"

    @property
    def line(self) -> str:
        """The rule for people."""
        parts = [f"{self.match} -> {self.precision}"]
        if self.precision == "int8":
            parts.append(self.method)
            if self.match != CACHE:
                parts.append(f"smooth {self.smooth}")
        return ", ".join(parts)

    def faults(self) -> list[str]:
        """List what is wrong with the rule."""
        found = []
        if not isinstance(self.match, str):
            return [f"match is {self.match!r}, expected a pattern of names"]
        precisions: tuple[str, ...] = PRECISIONS
        methods: tuple[str, ...] = METHODS
        if self.match == CACHE:
            precisions, methods = CACHE_PRECISIONS, CACHE_METHODS
            if self.smooth != "auto":
                found.append("smooth is for products, not for the cache")
        for name, known in (("precision", precisions), ("method", methods)):
            if getattr(self, name) not in known:
                found.append(
                    f"{name} is {getattr(self, name)!r}, expected one of: {', '.join(known)}"
                )
        number = isinstance(self.smooth, int | float) and not isinstance(self.smooth, bool)
        if not (self.smooth in SMOOTH or (number and 0 <= float(self.smooth) <= 1)):
            found.append(f"smooth is {self.smooth!r}, expected {', '.join(SMOOTH)} or 0 to 1")
        return found


@dataclass(frozen=True)
class Recipe:
    """Ordered rules, and what the quantised model must keep.

    On recorded steps at least `agreement` of the likeliest tokens, and a mean change of their
    log-probabilities of at most `drift` nats; in whole decodes `tokens` of the tokens,
    within their noise.
    Sites are raised to "int8-weight", the most harmful first, until all three hold.
    """

    name: str
    rules: tuple[Rule, ...]
    agreement: float = AGREEMENT
    drift: float = DRIFT
    tokens: float = TOKENS

    def rule(self, product: str) -> Rule:
        """Return the first rule that matches, or one that changes nothing."""
        for rule in self.rules:
            if fnmatchcase(product, rule.match):
                return rule
        return Rule("*", "model")

    @property
    def cache(self) -> Rule:
        """The first rule for the cache by name, or one that leaves it in the model's dtype."""
        return next((rule for rule in self.rules if rule.match == CACHE), Rule(CACHE, "model"))

    def lines(self) -> tuple[str, ...]:
        """One line per rule for people."""
        return tuple(rule.line for rule in self.rules)

    def data(self) -> dict[str, Any]:
        """The recipe as JSON data."""
        return asdict(self)


PRESETS: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("int8", (Rule(EMBEDDING, "fp16"), Rule("*", "int8"))),
        Recipe("int8-kv", (Rule(CACHE, "int8"), Rule(EMBEDDING, "fp16"), Rule("*", "int8"))),
        Recipe("int8-weight", (Rule(EMBEDDING, "fp16"), Rule("*", "int8-weight"))),
        Recipe(
            "int4-weight",
            (
                Rule(EMBEDDING, "fp16"),
                Rule("head", "int8-weight"),
                Rule("*", "int4-weight"),
            ),
        ),
    )
}


def find_recipe(name: str) -> Recipe:
    """Return the preset of a name, or read a recipe file."""
    if name in PRESETS:
        return PRESETS[name]
    path = Path(name)
    if path.suffix != ".toml":
        raise LopaError(
            f"recipe is {name!r}, expected one of: {', '.join(PRESETS)}, or a .toml file"
        )
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise LopaError(f"cannot read the recipe {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LopaError(f"recipe {path} is not valid TOML: {error}") from None
    return _read(path, data)


_LIMITS = {"agreement": AGREEMENT, "drift": DRIFT, "tokens": TOKENS}
_KEYS = {"name", "rule", *_LIMITS}


def _read(path: Path, data: dict[str, Any]) -> Recipe:
    faults = [f"unknown key {key}" for key in sorted(data.keys() - _KEYS)]
    rules = []
    known = {field.name for field in fields(Rule)}
    tables = data.get("rule")
    if not isinstance(tables, list) or not tables:
        faults.append("no [[rule]]")
        tables = []
    for number, table in enumerate(tables, 1):
        if not isinstance(table, dict):
            faults.append(f"rule {number} is {table!r}, expected a table")
            continue
        wrong = sorted(table.keys() - known)
        missing = sorted({"match", "precision"} - table.keys())
        faults += [f"rule {number}: unknown key {key}" for key in wrong]
        faults += [f"rule {number}: no {key}" for key in missing]
        if not wrong and not missing:
            rules.append(Rule(**table))
            faults += [f"rule {number}: {fault}" for fault in rules[-1].faults()]
    limits = {name: data.get(name, default) for name, default in _LIMITS.items()}
    for name, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            faults.append(f"{name} is {value!r}, expected 0 to 1")
    if faults:
        raise LopaError(f"recipe {path}: {'; '.join(faults)}")
    return Recipe(str(data.get("name", path.stem)), tuple(rules), **limits)
