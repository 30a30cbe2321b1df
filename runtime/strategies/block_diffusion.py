"""Block diffusion: blocks are denoised one after the other against a causal cache of blocks.

Serves SDAR (finished blocks are stored by a forward of their own), Fast-dLLM v2 (small blocks, a
buffer of the block being filled, and the storing forward predicts the next block's first token) and
LLaDA2 (no cache).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..blocks import Block, BlockState, cached_end, filled_end, merge_cached, retire_filled
from ..branches import Branch, Window
from ..contract import Instance
from ..manifest import ModelInfo
from ..sampling import Predictions
from ..setting import count, setting, share
from .meanings import BLOCK_SIZE, CACHE, CONFIDENCE, FILL, REVISION, STOP
from .protocol import BaseSettings, Fill, step_shape
from .selection import above, count_at, even_counts, fills, surest


@dataclass(frozen=True)
class BlockDiffusionSettings(BaseSettings):
    """Settings of `BlockDiffusion`."""

    trained_for: ClassVar[str] = "block-causal"

    block_size: int | None = count(None, "masks of a block", shown=BLOCK_SIZE)
    small_block_size: int | None = count(
        None, "part of a block that is filled at a time", shown="the block"
    )
    fill: str = setting("threshold", FILL, choices=("threshold", "quota", "sequential"))
    confidence: float = share(0.9, CONFIDENCE, needs={"fill": ("threshold",)}, alias="threshold")
    block_steps: int | None = count(
        None, "steps of each block that counts spread over", shown="one per position"
    )
    cache: str = setting("prefix", CACHE, choices=("prefix", "none", "dual"))
    revision: str = setting("v1", REVISION, choices=("v1", "legacy"))
    stop: str = setting("token", STOP, choices=("token", "block", "none"))

    def faults(self, model: ModelInfo) -> list[str]:
        """Small blocks must divide a block."""
        block = self.block_size or model.block_size
        small = self.small_block_size or block
        return [f"small block size is {small}, expected a divisor of {block}"] * (block % small > 0)

    def least_new_tokens(self, model: ModelInfo) -> int:
        """A block where the budget counts whole ones."""
        return (self.block_size or model.block_size) if self._stores_ahead(model) else 1

    def room(self, prompt: int, context: int, model: ModelInfo) -> int:
        """Whole blocks, that of the prompt's last tokens included where it counts."""
        block = self.block_size or model.block_size
        begun = prompt % block if self._stores_ahead(model) else 0
        return context // block * block - prompt + begun

    def _stores_ahead(self, model: ModelInfo) -> bool:
        """Whether the budget counts whole blocks, that of the prompt's last tokens included."""
        return bool(model.logit_shift) and self.cache != "none"

    @property
    def fill_threshold(self) -> float | None:
        """Positions above it are filled."""
        return self.confidence if self.fill == "threshold" else None

    def strategy(self, model: ModelInfo, new_tokens: int, alone: bool) -> BlockDiffusion:
        """Build the strategy."""
        block = self.block_size or model.block_size
        return BlockDiffusion(
            block_size=block,
            small_block_size=self.small_block_size or block,
            new_tokens=new_tokens,
            steps=self.block_steps or block,
            fill_by=self.fill,
            threshold=self.confidence,
            cache=self.cache,
            logit_shift=model.logit_shift,
            stop=self.stop,
            stop_token_ids=model.stop_token_ids,
            legacy=self.revision == "legacy",
        )


@dataclass(frozen=True)
class BlockDiffusion:
    """Blocks lie at multiples of `block_size` from 0; a block sees itself and earlier ones.

    `cache` "none": every forward computes everything up to the end of the block. "prefix": whole
    blocks are in the cache. "dual": also the block being filled, so that a forward may compute one
    of its small blocks alone.
    """

    block_size: int
    small_block_size: int  # part of a block that is filled at a time
    new_tokens: int
    steps: int  # of each block; spreads the counts of a step
    fill_by: str  # "threshold" | "quota" | "sequential"
    threshold: float
    cache: str  # "none" | "prefix" | "dual"
    logit_shift: int
    stop: str  # "token" | "block" | "none"
    stop_token_ids: tuple[int, ...]
    legacy: bool = False  # with logit shift 1 a prompt of exactly one block is never encoded

    def begin(self, branch: Branch, prompt: Sequence[int]) -> None:
        """Whole blocks of the prompt wait for the cache; the rest of it begins a block."""
        size = self.block_size
        whole = len(prompt) // size * size
        branch.start(prompt)
        if self._hidden(len(prompt)):
            branch.blocks.append(Block(0, size, 0, BlockState.IN_CACHE))
            return
        for start in range(0, whole, size):
            branch.blocks.append(Block(start, start + size, 0, BlockState.TO_CACHE))
        if whole < len(prompt):
            branch.extend(whole + size - len(prompt)).start = whole

    def advance(self, branch: Branch, room: int) -> bool:
        """Add a block when the last one is finished, and point the branch at what it fills next."""
        if branch.ended:
            return True
        blocks, end = branch.blocks, self.length(branch.prompt_length)
        retire_filled(blocks)
        last = blocks[-1]
        stored = self.cache == "none" or last.state is BlockState.IN_CACHE
        if not last.masks and (stored or self.predicts_next) and branch.length < end:
            branch.extend(min(self.block_size, end - branch.length))
        self._focus(branch)
        return True

    def finished(self, branch: Branch) -> bool:
        """A branch ends at a stop token or when its last block is filled, and stored if it must."""
        if branch.ended:
            return True
        if branch.length < self.length(branch.prompt_length) or branch.blocks[-1].masks:
            return False
        return (
            self.cache == "none"
            or self.predicts_next
            or branch.blocks[-1].state is BlockState.IN_CACHE
        )

    def window(self, branches: Sequence[Branch]) -> Window:
        """The block, or one small block of it, as the anchor needs it.

        A small block runs alone once the block is in the buffer and, where row p - 1 predicts
        position p, its first token is known.
        """
        if self.cache == "none":
            return Window(0, 0, block_causal=True)
        branch = branches[-1]
        block = branch.blocks[branch.focus]
        start, end = cached_end(branch.blocks), block.end
        hidden = self._hidden(branch.prompt_length)
        storing = any(b.blocks[b.focus].state is BlockState.TO_CACHE for b in branches)
        if self.cache == "dual" and not storing and block.steps:
            low, high = branch.span or (start, end)
            if not (self.logit_shift and branch.masked[low]):
                slots = (hidden, end)
                return Window(low, high, True, end=high, slots=slots, keeps_row=False)
        writes = storing or self.cache == "dual"
        commit_end = end if writes else start
        return Window(start, commit_end, True, end, slots=(hidden, start), keeps_row=False)

    def fill(self, branch: Branch, predictions: Predictions) -> list[Fill]:
        """Fill what the rule accepts; a storing forward sets the first token of the next block."""
        block = branch.blocks[branch.focus]
        left = len(predictions.positions)
        if block.state is BlockState.TO_CACHE:
            return fills(predictions, range(left))
        count = count_at(even_counts(self.block_size, self.steps), block.steps, left)
        if self.fill_by == "sequential":
            return fills(predictions, range(count))
        if self.fill_by == "threshold":
            sure = above(predictions, self.threshold)
            if len(sure) >= count:
                return fills(predictions, sure)
        return fills(predictions, surest(predictions, count))

    def settle(self, branch: Branch, window: Window) -> None:
        """Count the forward, or move stored blocks to the cache; then look for a stop token."""
        block = branch.blocks[branch.focus]
        if block.state is BlockState.TO_CACHE:
            for stored in branch.blocks[: branch.focus + 1]:
                stored.state = BlockState.IN_CACHE
            merge_cached(branch.blocks)
        else:
            block.steps += 1
        if self.stop != "none":
            self._stop(branch)

    def lookahead_room(self, branch: Branch) -> int:
        """With a block buffer, all but one mask of the small block.

        Else the rows are the same whatever is filled, and the next forward of a lookahead that
        finishes the block stores it, if that branch wins.
        """
        if self.cache == "dual":
            return max(len(branch.open_positions()) - 1, 0)
        return len(branch.masked_positions())

    def shapes(self, prompt: int, branches: int) -> list[Instance]:
        """Whole blocks of the prompt at once, then a block; without a cache all of them."""
        size, total = self.block_size, self.slots(prompt)
        if self.cache == "none":
            return [step_shape(branches, total, total, size)]
        whole = prompt // size * size
        prefill = [step_shape(1, whole, total, size)] if whole else []
        return [*prefill, step_shape(branches, size, total, size)]

    def length(self, prompt: int) -> int:
        """Final length of a prompt of `prompt` tokens.

        The budget is rounded up to whole blocks. Where storing a block predicts the next token,
        it is rounded down, the rest of the prompt's block counts as one, and one token follows.
        """
        size = self.block_size
        if not self.predicts_next:
            return -(-(prompt + self.new_tokens) // size) * size
        return (prompt // size + self.new_tokens // size) * size + 1

    def slots(self, prompt: int) -> int:
        """Cache slots that hold all blocks; a token that the last store predicts needs none."""
        return self.length(prompt) - self.predicts_next

    @property
    def predicts_next(self) -> bool:
        """Whether the forward that stores a block predicts the first token of the next one."""
        return self.cache != "none" and self.logit_shift == 1

    def _hidden(self, prompt: int) -> int:
        """Leading positions that the legacy loop never encodes."""
        return prompt if self.legacy and self.predicts_next and prompt == self.block_size else 0

    def _focus(self, branch: Branch) -> None:
        """Set the block of the next forward and the positions that it may fill."""
        blocks = branch.blocks
        if self.cache == "none":
            index = next((i for i, block in enumerate(blocks) if block.masks), len(blocks) - 1)
        else:
            waiting = [i for i, block in enumerate(blocks) if block.state is BlockState.TO_CACHE]
            first = sum(block.state is BlockState.IN_CACHE for block in blocks)
            index = waiting[-1] if waiting else min(first, len(blocks) - 1)
        block = blocks[index]
        branch.focus = index
        if block.state is BlockState.ACTIVE and block.masks:
            low = int(np.argmax(branch.masked[block.start : block.end]))
            low = block.start + low // self.small_block_size * self.small_block_size
            branch.span = (low, min(low + self.small_block_size, block.end))
        else:
            branch.span = (block.end, block.end + self.logit_shift)

    def _stop(self, branch: Branch) -> None:
        """End the branch, and cut it, where a stop token has nothing masked before it."""
        if self.stop == "token":
            open_positions = branch.masked_positions()
            end = int(open_positions[0]) if len(open_positions) else branch.length
        elif self.cache == "none":
            end = filled_end(branch.blocks)
        else:
            end = cached_end(branch.blocks)
        new = branch.tokens[branch.prompt_length : end]
        hits = np.flatnonzero(np.isin(new, self.stop_token_ids))
        if len(hits):
            branch.ended = True
            branch.cut(branch.prompt_length + int(hits[0]) + 1 if self.stop == "token" else end)
