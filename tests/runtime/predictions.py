"""Hand-made predictions and branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from lopa.runtime.branches import Branch
from lopa.runtime.sampling import Predictions


def predictions(
    confidence: Mapping[int, float],
    *,
    probability: Mapping[int, float] | None = None,
    entropy: Sequence[float] | None = None,
) -> Predictions:
    """Predict token 100 + position at every position of `confidence`."""
    positions = np.array(sorted(confidence), np.intp)
    chances = probability or confidence
    return Predictions(
        positions,
        (100 + positions).astype(np.int32),
        np.array([chances[int(p)] for p in positions], np.float32),
        np.array([confidence[int(p)] for p in positions], np.float32),
        np.array([0.0] * len(positions) if entropy is None else entropy, np.float32),
    )


def branch_of(confidence: float = 1.0, reward: float = 1.0) -> Branch:
    """A branch that only carries how it was made."""
    branch = Branch(4, 0)
    branch.confidence, branch.reward = confidence, reward
    return branch
