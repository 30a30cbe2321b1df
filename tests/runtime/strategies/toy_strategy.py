"""A strategy that the package does not know: so many masks per step, from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from lopa.runtime.branches import Branch, Window
from lopa.runtime.contract import Instance
from lopa.runtime.manifest import ModelInfo
from lopa.runtime.sampling import Predictions
from lopa.runtime.setting import count
from lopa.runtime.strategies.protocol import BaseSettings, Fill, step_shape
from lopa.runtime.strategies.selection import fills
from lopa.runtime.strategies.vanilla import begin_masked


@dataclass(frozen=True)
class ToySettings(BaseSettings):
    trained_for: ClassVar[str] = "full"

    stride: int = count(2, "masks that a step fills, from left to right")

    def strategy(self, model: ModelInfo, new_tokens: int, alone: bool) -> Toy:
        return Toy(new_tokens, self.stride)


@dataclass(frozen=True)
class Toy:
    new_tokens: int
    stride: int

    @property
    def block_size(self) -> int:
        return self.new_tokens

    def begin(self, branch: Branch, prompt: Sequence[int]) -> None:
        begin_masked(branch, prompt, self.new_tokens, self.new_tokens)

    def advance(self, branch: Branch, room: int) -> bool:
        branch.focus, branch.span = 1, (0, branch.length)
        return True

    def finished(self, branch: Branch) -> bool:
        return not len(branch.masked_positions())

    def window(self, branches: Sequence[Branch]) -> Window:
        return Window(0, 0, block_causal=False)

    def fill(self, branch: Branch, predictions: Predictions) -> list[Fill]:
        return fills(predictions, range(min(self.stride, len(predictions.positions))))

    def settle(self, branch: Branch, window: Window) -> None:
        return None

    def lookahead_room(self, branch: Branch) -> int:
        return max(len(branch.masked_positions()) - 1, 0)

    def shapes(self, prompt: int, branches: int) -> list[Instance]:
        total = prompt + self.new_tokens
        return [step_shape(branches, total, total, self.new_tokens)]
