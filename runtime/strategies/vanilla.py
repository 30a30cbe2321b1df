"""Plain masked diffusion: every step is one forward over the whole sequence, without a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..blocks import Block, BlockState
from ..branches import Branch, Window
from ..sampling import Predictions
from .protocol import Fill


@dataclass(frozen=True)
class Vanilla:
    """Dream's schedule: step i of `steps` fills masks * (1 - t[i + 1] / t[i]) positions.

    t runs linearly from 1 to `eps`; the most confident positions go first, the last step fills all
    that remain. A step may fill nothing.
    """

    new_tokens: int
    steps: int
    eps: float = 1e-3

    def begin(self, branch: Branch, prompt: Sequence[int]) -> None:
        """Prompt and all new tokens from the start; nothing ever enters the cache."""
        branch.start(prompt)
        branch.blocks.append(Block(0, len(prompt), 0, complete=True))
        branch.extend(self.new_tokens)

    def advance(self, branch: Branch, room: int) -> bool:
        """Nothing to prepare."""
        return True

    def finished(self, branch: Branch) -> bool:
        """A branch ends when nothing is masked."""
        return not any(block.masks for block in branch.blocks)

    def window(self, branches: Sequence[Branch]) -> Window:
        """The whole sequence with full attention."""
        return Window(0, 0, block_causal=False)

    def fill(self, branch: Branch, predictions: Predictions, step: int) -> list[Fill]:
        """Fill the quota of this step (counted from 0), most confident positions first."""
        quota = len(predictions.positions)
        if step < self.steps - 1:
            times = np.linspace(1, self.eps, self.steps + 1, dtype=np.float32)
            quota = int(quota * (1 - times[step + 1] / times[step]))
        order = np.argsort(-predictions.confidence, kind="stable")[:quota]
        return [
            (int(predictions.positions[i]), int(predictions.token_ids[i])) for i in np.sort(order)
        ]

    def settle(self, branch: Branch, window: Window) -> None:
        """Blocks stay active: there is no cache."""
        assert all(block.state is BlockState.ACTIVE for block in branch.blocks)
