"""Branch scores: how promising a branch looks before its tokens are filled (LoPA, eq. 2)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .branches import Branch
from .sampling import Predictions
from .setting import count, setting


@dataclass(frozen=True)
class BranchScore:
    """A branch score with its settings."""

    score: str = setting(
        "mean_confidence",
        "what branches are compared by",
        choices=lambda: tuple(SCORES),
        needs={"lookahead_shape": ("single",)},
    )
    score_alpha: float | None = setting(
        None,
        "weight of what a branch has filled",
        shown="0.5 of mixed, 0.7 of reward_entropy",
        least=0,
        most=1,
        needs={"score": ("mixed", "reward_entropy")},
    )
    score_fraction: float = setting(
        0.5,
        "share of the least sure masks that counts",
        above=0,
        most=1,
        needs={"score": ("bottom_fraction", "mixed")},
    )
    score_window: int = count(
        8, "consecutive masks averaged", needs={"score": ("sliding_minimum",)}
    )

    @property
    def past_weight(self) -> float:
        """Alpha in force: the given one or the default of the score."""
        given = self.score_alpha
        return DEFAULT_ALPHA.get(self.score, 0.0) if given is None else given

    def __call__(self, branch: Branch, predictions: Predictions, vocab_size: int) -> float:
        """Score one branch from its predictions over all masks left; higher is better."""
        return SCORES[self.score](self, branch, predictions, vocab_size)


def mean_of_lowest(values: NDArray[np.float32], fraction: float) -> float:
    """Mean of the lowest max(1, floor(n * fraction)) values; 1 when there is none."""
    count = len(values)
    if not count:
        return 1.0
    kept = max(1, math.floor(count * fraction))
    if kept == count:
        return float(values.mean())
    return float(np.partition(values, kept - 1)[:kept].mean())


def least_window_mean(values: NDArray[np.float32], window: int) -> float:
    """Least mean of `window` consecutive values, the mean of all if there are fewer; 1 if none."""
    count = len(values)
    if count <= window:
        return mean_of_lowest(values, 1.0)
    sums = np.cumsum(values, dtype=np.float64)
    sums[window:] -= sums[:-window].copy()
    return float(sums[window - 1 :].min() / window)


def least_segment_mean(positions: NDArray[np.intp], values: NDArray[np.float32]) -> float:
    """Least mean over the runs of adjacent `positions`; 1 if there is none."""
    if not len(values):
        return 1.0
    starts = np.flatnonzero(np.diff(positions, prepend=-2) != 1)
    sizes = np.diff(starts, append=len(values))
    return float((np.add.reduceat(values, starts) / sizes).min())


def _mean_confidence(
    score: BranchScore, branch: Branch, predictions: Predictions, vocab_size: int
) -> float:
    return mean_of_lowest(predictions.confidence, 1.0)


def _bottom_fraction(
    score: BranchScore, branch: Branch, predictions: Predictions, vocab_size: int
) -> float:
    return mean_of_lowest(predictions.confidence, score.score_fraction)


def _mixed(score: BranchScore, branch: Branch, predictions: Predictions, vocab_size: int) -> float:
    future = mean_of_lowest(predictions.confidence, score.score_fraction)
    alpha = score.past_weight
    return alpha * branch.confidence + (1 - alpha) * future


def _reward_entropy(
    score: BranchScore, branch: Branch, predictions: Predictions, vocab_size: int
) -> float:
    certainty = 1.0
    if len(predictions.entropy):
        certainty = float(np.mean(1 - predictions.entropy / math.log(vocab_size)))
    alpha = score.past_weight
    return alpha * branch.reward + (1 - alpha) * certainty


def _sliding_minimum(
    score: BranchScore, branch: Branch, predictions: Predictions, vocab_size: int
) -> float:
    return least_window_mean(predictions.confidence, score.score_window)


def _least_segment(
    score: BranchScore, branch: Branch, predictions: Predictions, vocab_size: int
) -> float:
    return least_segment_mean(predictions.positions, predictions.confidence)


DEFAULT_ALPHA = {"mixed": 0.5, "reward_entropy": 0.7}

SCORES: dict[str, Callable[[BranchScore, Branch, Predictions, int], float]] = {
    "mean_confidence": _mean_confidence,
    "bottom_fraction": _bottom_fraction,
    "mixed": _mixed,
    "reward_entropy": _reward_entropy,
    "sliding_minimum": _sliding_minimum,
    "least_segment": _least_segment,
}
