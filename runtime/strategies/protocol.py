"""What a decoding strategy decides inside the one step loop, and how its settings are declared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from ..branches import Branch, Window
from ..contract import Instance
from ..manifest import ModelInfo
from ..sampling import Predictions

Fill = tuple[int, int]  # (absolute position, token id)


class Strategy(Protocol):
    """Rules of one decoding scheme; it keeps no state between steps, branches do.

    Per step the loop calls `advance` on every branch, drops those that are `finished`, runs
    `window`, fills the winner by `fill`, lets it `settle`, and spawns lookahead branches from it,
    each with at most `lookahead_room` more tokens.
    """

    @property
    def block_size(self) -> int:
        """Masks of a block."""

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

    def shapes(self, prompt: int, branches: int) -> list[Instance]:
        """Steps on `prompt` tokens that an instance must hold, the largest ones.

        A cache refresh and the encoding of the prompt run the anchor alone, all others `branches`.
        """


class BaseSettings(Protocol):
    """Settings of a base strategy: a frozen dataclass of `setting` fields beside the algorithm."""

    trained_for: ClassVar[str]  # window attention that its models were trained with
    masks_budget: ClassVar[bool] = False  # all new tokens are masks from the first step on

    def serves(self, model: ModelInfo) -> bool:
        """Whether the strategy decodes such a model."""
        return model.window_attention == self.trained_for

    def faults(self, model: ModelInfo) -> list[str]:
        """List settings that contradict each other or the model."""
        return []

    def budget_faults(self, new_tokens: int, model: ModelInfo) -> list[str]:
        """List settings that contradict a budget of `new_tokens`."""
        return []

    def least_new_tokens(self, model: ModelInfo) -> int:
        """The smallest token budget: more than 1 where only whole blocks are added."""
        return 1

    def room(self, prompt: int, context: int, model: ModelInfo) -> int:
        """The largest token budget that `context` slots hold behind `prompt` tokens."""
        return context - prompt

    @property
    def fill_threshold(self) -> float | None:
        """The probability that separates filled from open positions; None: there is none."""
        return None

    def strategy(self, model: ModelInfo, new_tokens: int, alone: bool) -> Strategy:
        """Build the strategy; `alone`: no lookahead is configured over it."""


def step_shape(branches: int, window: int, context: int, block: int) -> Instance:
    """A step whose branches have at most one open block: so many head rows each."""
    return Instance(branches, window, context, min(window, block) * branches)
