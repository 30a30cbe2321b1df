"""Chooses per site how its activations become integers: the range and the scale migration.

Scale migration (SmoothQuant, equation 4): channel j of an activation is divided by
s_j = max|x_j|^a / max|w_j|^(1 - a), and row j of the matrices is multiplied by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .integers import columns_int8, fake_int8, scale_of
from .ranges import TensorRange
from .recipe import Recipe, Rule
from .sites import Site, StepGraph
from .thresholds import THRESHOLDS, Histogram

EXPONENTS = (0.5, 0.75, 0.9)
MEASURED_ROWS = 128

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class SitePlan:
    """How a site is quantised.

    `precisions` by product name; `largest` is the magnitude that 127 stands for, `exponent` and
    `channels` [K] describe the scale migration, `noise` is the squared error of the site's products
    relative to their squared size, on sampled rows.
    """

    site: Site
    precisions: Mapping[str, str]
    method: str | None = None
    largest: float = 0.0
    exponent: float | None = None
    channels: Floats | None = field(default=None, compare=False)
    noise: float = 0.0
    reason: str = ""

    @property
    def integer(self) -> bool:
        """Whether any product runs in integers."""
        return "int8" in self.precisions.values()

    @property
    def snr_db(self) -> float | None:
        """Signal-to-noise ratio of the site's products in decibels."""
        return -10 * math.log10(self.noise) if self.noise > 0 else None

    def raised(self, reason: str) -> SitePlan:
        """The site with float activations and 8-bit weights."""
        precisions = {
            name: "int8-weight" if precision == "int8" else precision
            for name, precision in self.precisions.items()
        }
        return replace(
            self,
            precisions=precisions,
            method=None,
            exponent=None,
            channels=None,
            noise=0.0,
            reason=reason,
        )


def plan_site(
    graph: StepGraph, site: Site, recipe: Recipe, seen: TensorRange, rows: Floats
) -> SitePlan:
    """Plan one site from its range and sampled rows [n, K]."""
    rules = {product.name: recipe.rule(product.name) for product in site.products}
    precisions = {name: rule.precision for name, rule in rules.items()}
    integer = [product for product in site.products if precisions[product.name] == "int8"]
    if not integer:
        return SitePlan(site, precisions)
    rule = rules[integer[0].name]
    weights = [graph.matrix(product) for product in site.products]
    measured = rows[:: max(1, len(rows) // MEASURED_ROWS)]
    exact = [measured @ weight for weight in weights]
    best: SitePlan | None = None
    for exponent in _exponents(rule, site):
        channels = None if exponent is None else migration(seen.channels, weights, exponent)
        spread, largest = _scaled_range(seen, rows, channels)
        inputs = measured if channels is None else measured / channels
        matrices = [
            _rounded(weight if channels is None else weight * channels[:, None])
            for weight in weights
        ]
        for method in _methods(rule):
            threshold = THRESHOLDS[method](spread, largest)
            rounded = fake_int8(inputs, scale_of(threshold))
            noise = _noise([rounded @ matrix for matrix in matrices], exact)
            if best is None or noise < best.noise:
                best = SitePlan(site, precisions, method, threshold, exponent, channels, noise)
    assert best is not None
    return best


def migration(largest: Floats, weights: Sequence[Floats], exponent: float) -> Floats:
    """Channel scales [K] of equation 4, around 1; unused channels keep 1."""
    rows = np.max([np.abs(weight).max(1) for weight in weights], 0)
    used = (largest > 0) & (rows > 0)
    scale = np.ones_like(largest)
    scale[used] = largest[used] ** exponent / rows[used] ** (1 - exponent)
    scale[used] /= np.exp(np.log(scale[used]).mean())
    return scale


def _exponents(rule: Rule, site: Site) -> tuple[float | None, ...]:
    if site.before is None or rule.smooth == "off":
        return (None,)
    return (None, *EXPONENTS) if rule.smooth == "auto" else (float(rule.smooth),)


def _methods(rule: Rule) -> tuple[str, ...]:
    return tuple(THRESHOLDS) if rule.method == "auto" else (rule.method,)


def _scaled_range(
    seen: TensorRange, rows: Floats, channels: Floats | None
) -> tuple[Histogram, float]:
    """Magnitudes after the migration: of all rows seen, or of the sampled ones when migrated."""
    if channels is None:
        return seen.histogram, seen.largest
    histogram = Histogram.empty()
    histogram.add(np.abs(rows / channels))
    return histogram, float((seen.channels / channels).max())


def _rounded(weight: Floats) -> Floats:
    integers, scale = columns_int8(weight)
    return np.asarray(integers * scale)


def _noise(outputs: Sequence[Floats], exact: Sequence[Floats]) -> float:
    error = sum(float(np.square(a - b).sum()) for a, b in zip(outputs, exact, strict=True))
    signal = sum(float(np.square(b).sum()) for b in exact)
    return error / signal if signal else 0.0
