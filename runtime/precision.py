"""Which of a bundle's two precisions a step runs in.

A bundle may hold the model twice: its own graph (full) and a quantised one (fast). A step that
only explores can run fast; what is kept should not depend on the rounding of a quantised graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .branches import Window
from .manifest import BundleManifest
from .sampling import Predictions
from .setting import setting, share

POLICIES = ("full", "fast", "auto")


@dataclass(frozen=True)
class PrecisionPolicy:
    """Chooses between full and fast steps.

    `full` and `fast` always take the same. `auto` explores fast and turns to full where rounding
    could decide: a step that writes to the cache runs full at once; a fast step is run again in
    full when another branch scores within `precision_margin` of the winner, or when a probability
    of the winner lies within it of `threshold`, which separates filled from open positions.
    """

    precision_policy: str = setting(
        "full", "which graph of a bundle built with --fast-model a step runs", choices=POLICIES
    )
    precision_margin: float = share(
        0.05,
        "a fast step runs again in full if branch scores, or a probability and its threshold, are "
        "nearer than this",
        needs={"precision_policy": ("auto",)},
    )
    threshold: float | None = None  # of the base strategy's fill, where it has one

    def faults(self, manifest: BundleManifest) -> list[str]:
        """List what the bundle cannot serve."""
        if self.precision_policy == "full" or manifest.fast is not None:
            return []
        return [
            f"precision policy is {self.precision_policy!r}, the bundle holds one precision; "
            "build with --fast-model (a folder made by lopa calibrate) for two"
        ]

    @property
    def doubtful(self) -> bool:
        """Whether fast steps are run again in full where rounding could decide."""
        return self.precision_policy == "auto"

    def explores(self, window: Window) -> bool:
        """Whether the step of `window` runs fast at first."""
        return self.precision_policy == "fast" or (self.doubtful and not window.commits)

    def doubts(self, scores: Sequence[float], winner: int, predicted: Predictions) -> bool:
        """Whether a fast step is to be run again in full; `predicted` is of the winner."""
        if not self.doubtful:
            return False
        rivals = np.delete(np.asarray(scores), winner)
        if len(rivals) and scores[winner] - rivals.max() < self.precision_margin:
            return True
        if self.threshold is None:
            return False
        return bool((np.abs(predicted.probability - self.threshold) < self.precision_margin).any())
