"""From what was seen of an activation tensor to the largest magnitude its integers represent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BINS = 2048
LEVELS = 128  # magnitudes of a symmetric 8-bit integer
PERCENTILE = 99.99
NARROWEST = 2.0**-100  # width whose inverse float32 holds
UNSEEN = 1e-10  # share of a bin that holds nothing but outliers
STRIDE = 16  # bins between the thresholds that entropy tries

Counts = NDArray[np.int64]


@dataclass
class Histogram:
    """Counts of magnitudes in BINS bins of equal width from 0; the width is a power of two.

    Widening doubles the width and adds neighbours up, so the order in which values are seen does
    not matter.
    """

    width: float
    counts: Counts

    @classmethod
    def empty(cls) -> Histogram:
        """A histogram that has seen nothing."""
        return cls(0.0, np.zeros(BINS, np.int64))

    def add(self, magnitudes: NDArray[np.float32]) -> None:
        """Count magnitudes of any shape."""
        largest = float(magnitudes.max(initial=0.0))
        if largest > 0:
            needed = max(2.0 ** math.ceil(math.log2(largest / BINS)), NARROWEST)
            if largest >= needed * BINS:  # exactly on the edge
                needed *= 2
            self.widen(max(needed, self.width))
        if not self.width:  # zeros alone, of which any width counts the same
            self.counts[0] += magnitudes.size
            return
        index = (magnitudes.reshape(-1) * np.float32(1 / self.width)).astype(np.int32)
        self.counts += np.bincount(np.minimum(index, BINS - 1), minlength=BINS)

    def widen(self, width: float) -> None:
        """Give the bins a larger width, the present one times a power of two."""
        while self.width and self.width < width:
            paired = self.counts.reshape(-1, 2).sum(1)
            self.counts = np.concatenate([paired, np.zeros(BINS // 2, np.int64)])
            self.width *= 2
        self.width = width


def percentile(histogram: Histogram, largest: float, share: float = PERCENTILE) -> float:
    """The magnitude below which `share` per cent of the values lie."""
    total = int(histogram.counts.sum())
    if not total or not histogram.width:
        return largest
    reached = np.cumsum(histogram.counts) >= total * share / 100
    return min(largest, (int(np.argmax(reached)) + 1) * histogram.width)


def entropy(histogram: Histogram, largest: float) -> float:
    """The clipping threshold whose integers lose the least information about the distribution.

    For every threshold: the Kullback-Leibler divergence from the clipped distribution (outliers
    counted in its last bin) to the same distribution at LEVELS magnitudes.
    """
    counts = histogram.counts.astype(np.float64)
    used = int(np.flatnonzero(counts)[-1]) + 1 if counts.any() else 0
    if used <= LEVELS:
        return largest
    tail = counts.sum() - np.cumsum(counts)
    best, chosen = math.inf, used
    for end in [*range(LEVELS, used, STRIDE), used]:
        clipped = counts[:end].copy()
        level = np.minimum(np.arange(end) * LEVELS // end, LEVELS - 1)
        present = clipped > 0
        sums = np.bincount(level, clipped, LEVELS)
        bins = np.maximum(np.bincount(level, present, LEVELS), 1)
        spread = np.where(present, (sums / bins)[level], 0.0)
        clipped[-1] += tail[end - 1]
        seen = clipped > 0
        p = clipped[seen] / clipped.sum()
        q = np.maximum(spread[seen] / spread.sum(), UNSEEN)
        divergence = float((p * np.log(p / q)).sum())
        if divergence < best:
            best, chosen = divergence, end
    return min(largest, chosen * histogram.width)


def minmax(histogram: Histogram, largest: float) -> float:
    """The largest magnitude seen."""
    return largest


THRESHOLDS: dict[str, Callable[[Histogram, float], float]] = {
    "minmax": minmax,
    "percentile": percentile,
    "entropy": entropy,
}
