"""Which of a bundle's two precisions a step runs in.

A bundle may hold the model twice: its own graph (full) and a quantised one (fast). A step that
only explores can run fast; what is kept should not depend on the rounding of a quantised graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .branches import Window
from .sampling import Predictions

POLICIES = ("full", "fast", "auto")
DEFAULT_MARGIN = 0.05


@dataclass(frozen=True)
class PrecisionPolicy:
    """Chooses between full and fast steps.

    `full` and `fast` always take the same. `auto` explores fast and turns to full where rounding
    could decide: a step that writes to the cache runs full at once; a fast step is run again in
    full when another branch scores within `margin` of the winner, or when a probability of the
    winner lies within `margin` of `threshold`, which separates filled from open positions.
    """

    name: str = "full"
    margin: float = DEFAULT_MARGIN
    threshold: float | None = None  # of the base strategy's fill, where it has one

    def explores(self, window: Window) -> bool:
        """Whether the step of `window` runs fast at first."""
        return self.name == "fast" or (self.name == "auto" and not window.commits)

    def doubts(self, scores: Sequence[float], winner: int, predicted: Predictions) -> bool:
        """Whether a fast step is to be run again in full; `predicted` is of the winner."""
        if self.name != "auto":
            return False
        rivals = np.delete(np.asarray(scores), winner)
        if len(rivals) and scores[winner] - rivals.max() < self.margin:
            return True
        if self.threshold is None:
            return False
        return bool((np.abs(predicted.probability - self.threshold) < self.margin).any())
