"""Discrete diffusion forcing (D2F): pipelined blocks over a block-causal cache.

A block is added when the last one is decoded far enough; confident positions of every active block
are filled in parallel; filled blocks enter the cache in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..blocks import Block, BlockState, cached_end, mark_complete, retire_filled, retired_end
from ..branches import Branch, Window
from ..sampling import Predictions
from .protocol import Fill


@dataclass(frozen=True)
class D2F:
    """D2F decoding; with `block_causal` off, rows of the window see the whole window (LoPA)."""

    block_size: int
    max_blocks: int
    add_threshold: float
    complete_threshold: float
    confidence: float
    block_causal: bool
    stops: bool = True  # a stop token ends the adding of blocks

    def begin(self, branch: Branch, prompt: Sequence[int]) -> None:
        """The prompt is block 0, complete and waiting for its cache write."""
        branch.start(prompt)
        branch.blocks.append(Block(0, len(prompt), 0, BlockState.TO_CACHE, complete=True))

    def advance(self, branch: Branch, room: int) -> bool:
        """Add at most one block, then mark blocks complete."""
        blocks = branch.blocks
        due = (
            len(blocks) <= self.max_blocks
            and not (branch.stopped and self.stops)
            and blocks[-1].progress >= self.add_threshold
        )
        fits = branch.length + self.block_size - cached_end(blocks) <= room
        if due and fits:
            branch.extend(self.block_size)
        mark_complete(blocks, self.complete_threshold)
        return fits or not due

    def finished(self, branch: Branch) -> bool:
        """A branch ends when nothing is masked and no block is active."""
        return all(not b.masks and b.state is not BlockState.ACTIVE for b in branch.blocks)

    def window(self, branches: Sequence[Branch]) -> Window:
        """From the first position not in the cache; retired blocks are written by this forward."""
        start = cached_end(branches[0].blocks)
        commit_end = min(retired_end(branch.blocks) for branch in branches)
        return Window(start, max(start, commit_end), self.block_causal)

    def fill(self, branch: Branch, predictions: Predictions) -> list[Fill]:
        """All positions above the confidence threshold; else one, forced, per complete block."""
        filled: list[Fill] = []
        for block in branch.blocks:
            if block.state is not BlockState.ACTIVE or not block.masks:
                continue
            inside = np.flatnonzero(
                (predictions.positions >= block.start) & (predictions.positions < block.end)
            )
            sure = inside[predictions.probability[inside] > self.confidence]
            if not len(sure) and block.complete:
                sure = inside[[int(np.argmax(predictions.confidence[inside]))]]
            filled += [(int(predictions.positions[i]), int(predictions.token_ids[i])) for i in sure]
        return filled

    def settle(self, branch: Branch, window: Window) -> None:
        """Written blocks are in the cache; mask-free active blocks wait for it."""
        for block in branch.blocks:
            if block.state is BlockState.TO_CACHE and block.end <= window.commit_end:
                block.state = BlockState.IN_CACHE
        retire_filled(branch.blocks)

    def lookahead_room(self, branch: Branch) -> int:
        """Every mask: branches share the cache and may differ in length."""
        return len(branch.masked_positions())


def block_count(max_new_tokens: int, block_size: int) -> int:
    """Number of blocks D2F may add for a token budget."""
    return math.floor(max_new_tokens / block_size)
