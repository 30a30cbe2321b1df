"""Which predicted positions a step fills: thresholds, a growing bound, and counts per step."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..sampling import Predictions
from .protocol import Fill

Indices = NDArray[np.intp]  # into predictions

DREAM_END = 1e-3  # time at which Dream's schedule ends


def fills(predictions: Predictions, chosen: Sequence[int] | Indices) -> list[Fill]:
    """Positions and tokens of the chosen predictions, in position order."""
    return [(int(predictions.positions[i]), int(predictions.token_ids[i])) for i in np.sort(chosen)]


def surest(predictions: Predictions, count: int) -> Indices:
    """The `count` most confident predictions, best first; ties go to the lower position."""
    return np.argsort(-predictions.confidence, kind="stable")[:count]


def above(predictions: Predictions, threshold: float, inclusive: bool = False) -> Indices:
    """Predictions whose probability is above `threshold` (or equal to it when `inclusive`)."""
    sure = predictions.probability > threshold
    return np.flatnonzero(sure | (predictions.probability == threshold) if inclusive else sure)


def above_or_best(predictions: Predictions, threshold: float) -> Indices:
    """Predictions whose probability reaches `threshold`, and always the most confident one."""
    return np.union1d(above(predictions, threshold, inclusive=True), surest(predictions, 1))


def within_factor(predictions: Predictions, factor: float) -> Indices:
    """Fast-dLLM's parallel bound: with n tokens each must have probability 1 - factor / (n + 1).

    The best first, until the first that fails; the best always passes, and the last prediction
    also when it is the first to fail.
    """
    order = np.argsort(-predictions.probability, kind="stable")
    ranks = np.arange(1, len(order) + 1)
    fails = predictions.probability[order] < 1 - factor / (ranks + 1)
    fails[:1] = False
    first = int(np.argmax(fails)) if fails.any() else len(order)
    return order if first == len(order) - 1 else order[:first]


def count_at(counts: Sequence[int], step: int, left: int) -> int:
    """How many of `left` masks step `step` of a schedule fills; its last step fills all."""
    return min(counts[step], left) if step < len(counts) - 1 else left


@functools.lru_cache
def even_counts(masks: int, steps: int) -> tuple[int, ...]:
    """LLaDA's schedule: `masks` over `steps` as evenly as possible, larger counts first."""
    return tuple(masks // steps + (step < masks % steps) for step in range(steps))


@functools.lru_cache
def dream_counts(masks: int, steps: int, first: int = 0) -> tuple[int, ...]:
    """Dream's schedule: step i fills trunc(masks left * (1 - t[i + 1] / t[i])), the last one all.

    t runs linearly from 1 to `DREAM_END` over `steps`; `masks` are left at step `first`, and the
    steps before it count 0. A step may fill nothing.
    """
    times = np.linspace(1, DREAM_END, steps + 1, dtype=np.float32)
    counts = [0] * first
    for step in range(first, steps):
        share = 1 - times[step + 1] / times[step]
        counts.append(int(masks * share) if step < steps - 1 else masks)
        masks -= counts[-1]
    return tuple(counts)
