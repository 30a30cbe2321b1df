"""What a decoding strategy decides inside the one step loop (`runtime/decoder.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..branches import Branch, Window
from ..sampling import Predictions

Fill = tuple[int, int]  # (absolute position, token id)


class Strategy(Protocol):
    """Rules of one decoding scheme; it keeps no state between steps, branches do.

    Per step the loop calls `advance` on every branch, drops those that are `finished`, runs
    `window`, fills the winner by `fill`, lets it `settle`, and spawns lookahead branches from it,
    each with at most `lookahead_room` more tokens.
    """

    def begin(self, branch: Branch, prompt: Sequence[int]) -> None:
        """Set up the anchor for a prompt."""

    def advance(self, branch: Branch, room: int) -> bool:
        """Prepare a branch for its next forward; its window may hold `room` rows.

        Sets the span of positions that this forward may fill. Returns False when a block was due
        but did not fit.
        """

    def finished(self, branch: Branch) -> bool:
        """Tell whether the branch needs no further forward."""

    def window(self, branches: Sequence[Branch]) -> Window:
        """Choose the rows of the next forward, common to all branches."""

    def fill(self, branch: Branch, predictions: Predictions) -> list[Fill]:
        """Choose what to commit on the winning branch."""

    def settle(self, branch: Branch, window: Window) -> None:
        """Update block states after the winner's fill and cache write."""

    def lookahead_room(self, branch: Branch) -> int:
        """How many masks of `branch` a lookahead in the next forward may fill; 0: none runs."""
