"""Plain masked diffusion: every step is one forward over the whole sequence, without a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..blocks import Block, BlockState
from ..branches import Branch, Window
from ..contract import Instance
from ..manifest import ModelInfo
from ..sampling import Predictions
from ..setting import count, setting
from .meanings import BY_SHIFT, CACHE, FILL, SCHEDULE, STEPS, STOP
from .protocol import BaseSettings, Fill, step_shape
from .selection import count_at, dream_counts, even_counts, fills, surest

SCHEDULES = {"dream": dream_counts, "llada": even_counts}


@dataclass(frozen=True)
class VanillaSettings(BaseSettings):
    """Settings of `Vanilla`."""

    trained_for: ClassVar[str] = "full"
    masks_budget: ClassVar[bool] = True

    block_size: int | None = count(None, "masks of a block", shown="one block of all new tokens")
    steps: int | None = count(None, STEPS, shown="one per new token")
    schedule: str | None = setting(
        None, SCHEDULE, shown=BY_SHIFT, choices=tuple(SCHEDULES), needs={"fill": ("quota",)}
    )
    fill: str = setting("quota", FILL, choices=("quota",))
    cache: str = setting("none", CACHE, choices=("none",))
    stop: str = setting("none", STOP, choices=("none",))

    def budget_faults(self, new_tokens: int, model: ModelInfo) -> list[str]:
        """Steps must spread evenly over the blocks."""
        return uneven_steps(self.steps, new_tokens, self.block_size or new_tokens)

    def strategy(self, model: ModelInfo, new_tokens: int, alone: bool) -> Vanilla:
        """Build the strategy."""
        return Vanilla(
            new_tokens=new_tokens,
            steps=self.steps or new_tokens,
            block_size=self.block_size or new_tokens,
            schedule=self.schedule or default_schedule(model),
        )


@dataclass(frozen=True)
class Vanilla:
    """A fixed number of the most confident positions per step; blocks from left to right.

    `schedule` spreads a block's masks over its share of `steps` (`SCHEDULES`). One block of all
    new tokens is the plain decode, smaller blocks the semi-autoregressive one.
    """

    new_tokens: int
    steps: int  # in all
    block_size: int
    schedule: str

    def begin(self, branch: Branch, prompt: Sequence[int]) -> None:
        """Prompt and all new tokens from the start; nothing ever enters the cache."""
        begin_masked(branch, prompt, self.new_tokens, self.block_size)

    def advance(self, branch: Branch, room: int) -> bool:
        """Work on the first block with masks."""
        for index, block in enumerate(branch.blocks):
            if block.masks:
                branch.focus, branch.span = index, (0, block.end)
                break
        return True

    def finished(self, branch: Branch) -> bool:
        """A branch ends when nothing is masked."""
        return not any(block.masks for block in branch.blocks)

    def window(self, branches: Sequence[Branch]) -> Window:
        """The whole sequence with full attention."""
        return Window(0, 0, block_causal=False)

    def fill(self, branch: Branch, predictions: Predictions) -> list[Fill]:
        """Fill the count of this step of the block, most confident positions first."""
        block = branch.blocks[branch.focus]
        steps = steps_per_block(self.steps, self.new_tokens, self.block_size)
        counts = SCHEDULES[self.schedule](block.end - block.start, steps)
        count = count_at(counts, block.steps, len(predictions.positions))
        return fills(predictions, surest(predictions, count))

    def settle(self, branch: Branch, window: Window) -> None:
        """Blocks stay active: there is no cache."""
        branch.blocks[branch.focus].steps += 1

    def lookahead_room(self, branch: Branch) -> int:
        """All masks but one: a branch with none would be finished and not be run."""
        return max(len(branch.masked_positions()) - 1, 0)

    def shapes(self, prompt: int, branches: int) -> list[Instance]:
        """Every step computes the whole sequence."""
        total = prompt + self.new_tokens
        return [step_shape(branches, total, total, self.block_size)]


def begin_masked(branch: Branch, prompt: Sequence[int], new_tokens: int, block_size: int) -> None:
    """Set up `prompt` and `new_tokens` masks in blocks; the last block may be shorter."""
    branch.start(prompt)
    branch.blocks.append(Block(0, len(prompt), 0, BlockState.ACTIVE, complete=True))
    end = branch.length + new_tokens
    while branch.length < end:
        branch.extend(min(block_size, end - branch.length))


def steps_per_block(steps: int, new_tokens: int, block_size: int) -> int:
    """Steps of each block when `steps` are spread evenly over all blocks, at least one."""
    return max(steps // -(-new_tokens // block_size), 1)


def uneven_steps(steps: int | None, new_tokens: int, block_size: int) -> list[str]:
    """Say, with what would do, that given `steps` do not spread evenly over all blocks."""
    blocks = -(-new_tokens // block_size)
    if steps is None or steps % blocks == 0:
        return []
    below = steps // blocks * blocks
    fitting = " or ".join(str(number) for number in (below, below + blocks) if number)
    return [f"steps is {steps}, expected a multiple of the {blocks} blocks: {fitting}"]


def default_schedule(model: ModelInfo) -> str:
    """That of the published loops for such models."""
    return "dream" if model.logit_shift else "llada"
