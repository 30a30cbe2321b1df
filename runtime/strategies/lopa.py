"""Lookahead Parallel Decoding: several branches per forward, the most promising is committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..branches import Branch
from ..sampling import Predictions
from ..scoring import BranchScore


@dataclass(frozen=True)
class Lookahead:
    """Spawns up to `branches` lookahead branches beside the anchor and picks the winner.

    Each lookahead is the anchor plus its next most confident unfilled position, among those that
    the base strategy let the last forward predict. With 0 branches the base strategy runs alone.
    """

    branches: int
    score: BranchScore
    anchor_wins: bool = False  # ablation: score the branches but always commit the anchor

    def choose(self, scores: Sequence[float]) -> int:
        """Index of the winner; branches are in forward order (lookaheads, anchor last).

        Ties go to the earlier branch.
        """
        if self.anchor_wins:
            return len(scores) - 1
        return int(np.argmax(scores))

    def extras(self, branch: Branch, predictions: Predictions) -> list[int]:
        """Indices into `predictions` of the positions that lookaheads fill, best first.

        `branch` is the winner after its fill; ties go to the lower position.
        """
        open_positions = np.flatnonzero(branch.masked[predictions.positions])
        order = np.argsort(-predictions.confidence[open_positions], kind="stable")
        return [int(index) for index in open_positions[order][: self.branches]]
