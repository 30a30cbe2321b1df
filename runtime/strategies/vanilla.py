"""Plain masked diffusion: every step is one forward over the whole sequence, without a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..blocks import Block, BlockState
from ..branches import Branch, Window
from ..sampling import Predictions
from .protocol import Fill
from .selection import count_at, dream_counts, even_counts, fills, surest

SCHEDULES = {"dream": dream_counts, "llada": even_counts}


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
