"""Chooses the scales with which keys and values are kept in the cache as 8-bit integers.

Every channel of every kv head has its own scale: keys have a few channels that are much larger than
the others, and a scale per channel costs nothing in the graph (`cache_graph`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..runtime.contract import CACHE_WINDOWS
from .integers import INT8_MAX, fake_int8, scale_of
from .progress import Progress
from .session import open_session
from .sites import StepGraph
from .states import Feeds, States, live_rows

METHODS = ("minmax", "percentile")
PERCENTILE = 99.9  # of a channel's sampled magnitudes
FINEST = 64  # a channel's scale is at least the head's divided by this: half precision holds both
ROWS, ROW_BYTES = 2048, 32 << 20  # rows kept of each of the two, and what they may take

Floats = NDArray[np.float32]


@dataclass
class CacheRange:
    """What was seen of keys or values: largest magnitudes [L, H, 1, D], rows [L, H, n, D]."""

    largest: Floats
    rows: Floats


@dataclass(frozen=True)
class TensorScales:
    """Scales [L, H, 1, D] of one cache tensor, by "minmax" or "percentile".

    `noise`: squared error of the sampled rows relative to their squared size.
    """

    method: str
    scale: Floats
    noise: float

    @property
    def snr_db(self) -> float | None:
        """Signal-to-noise ratio in decibels."""
        return -10 * math.log10(self.noise) if self.noise > 0 else None


@dataclass(frozen=True)
class CachePlan:
    """How keys and values become integers, by the name of the graph's input."""

    tensors: dict[str, TensorScales]

    @property
    def lines(self) -> tuple[str, ...]:
        """One line per tensor for people."""
        return tuple(
            f"{name.removeprefix('cache_')} int8, {found.method} per channel, signal to noise "
            + ("-" if found.snr_db is None else f"{found.snr_db:.1f} dB")
            for name, found in self.tensors.items()
        )

    def feeds(self, feeds: Feeds) -> Feeds:
        """The same step with its cache in integers."""
        return feeds | {
            name: integers(feeds[name], found.scale) for name, found in self.tensors.items()
        }


def integers(values: Floats, scale: Floats) -> NDArray[np.int8]:
    """Quantise [L, H, n, D] as the graph does: by a product with the inverse of the scales."""
    units = np.rint(values * (1 / scale).astype(values.dtype))
    return np.clip(units, -INT8_MAX - 1, INT8_MAX).astype(np.int8)


def read_cache_ranges(
    graph: StepGraph, states: States, progress: Progress
) -> dict[str, CacheRange]:
    """Run the steps one after the other and look at the rows that they would commit."""
    session = open_session(graph.model, graph.folder)
    largest: dict[str, Floats] = {}
    rows: dict[str, list[Floats]] = {name: [] for name in CACHE_WINDOWS}
    for number, feeds in enumerate(states):
        progress("reading keys and values", number, len(states))
        live = live_rows(feeds)
        outputs = session.run(list(CACHE_WINDOWS.values()), feeds)
        for name, window in zip(CACHE_WINDOWS, outputs, strict=True):
            seen = window[:, :, live].astype(np.float32)
            most = np.abs(seen).max(2, keepdims=True)
            largest[name] = np.maximum(largest[name], most) if name in largest else most
            count = _rows_per_state(seen[:, :, 0].nbytes, len(states))
            chosen = np.arange(count) * seen.shape[2] // count
            rows[name].append(seen[:, :, chosen])
    return {
        name: CacheRange(largest[name], np.concatenate(rows[name], 2)) for name in CACHE_WINDOWS
    }


def plan_cache(ranges: dict[str, CacheRange], method: str) -> CachePlan:
    """Choose scales by "minmax" or "percentile"; "auto" takes the less noisy for each tensor."""
    methods = METHODS if method == "auto" else (method,)
    return CachePlan(
        {
            name: min((_scales(seen, tried) for tried in methods), key=lambda found: found.noise)
            for name, seen in ranges.items()
        }
    )


def _scales(seen: CacheRange, method: str) -> TensorScales:
    finest = scale_of(seen.largest.max(-1, keepdims=True)) / FINEST
    scale = np.maximum(scale_of(_threshold(seen, method)), finest)
    exact = float(np.square(seen.rows).sum())
    error = float(np.square(fake_int8(seen.rows, scale) - seen.rows).sum())
    return TensorScales(method, scale, error / exact if exact else 0.0)


def _threshold(seen: CacheRange, method: str) -> Floats:
    if method == "minmax":
        return seen.largest
    found = np.percentile(np.abs(seen.rows), PERCENTILE, axis=2, keepdims=True)
    return found.astype(np.float32)


def _rows_per_state(row_bytes: int, states: int) -> int:
    return max(1, min(ROWS, ROW_BYTES // row_bytes) // states)
