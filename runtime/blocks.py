"""Blocks of one sequence: their states, and when a block is complete or ready for the cache."""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass


class BlockState(enum.Enum):
    """Life of a block: tokens are being filled, waits for its cache write, is in the cache."""

    ACTIVE = "active"
    TO_CACHE = "to_cache"
    IN_CACHE = "in_cache"


@dataclass(slots=True)
class Block:
    """Positions [start, end) of a sequence; `masks` of them are still unfilled."""

    start: int
    end: int
    masks: int
    state: BlockState = BlockState.ACTIVE
    complete: bool = False  # the block before is decoded far enough to force progress here
    steps: int = 0  # forwards spent on it, where the rules count them

    @property
    def progress(self) -> float:
        """Decoded share of the block, 0 to 1."""
        size = self.end - self.start
        return (size - self.masks) / size

    def copy(self) -> Block:
        """Return an independent block with the same values."""
        return Block(self.start, self.end, self.masks, self.state, self.complete, self.steps)


def mark_complete(blocks: list[Block], threshold: float) -> None:
    """Make each block complete whose predecessor reached `threshold`; never reset (D2F)."""
    for before, block in itertools.pairwise(blocks):
        if before.progress >= threshold:
            block.complete = True


def retire_filled(blocks: list[Block]) -> None:
    """Turn mask-free active blocks to TO_CACHE, in order, up to the first that has masks."""
    for block in blocks:
        if block.state is BlockState.ACTIVE:
            if block.masks:
                return
            block.state = BlockState.TO_CACHE


def cached_end(blocks: list[Block]) -> int:
    """First position that is not in the cache."""
    for block in blocks:
        if block.state is not BlockState.IN_CACHE:
            return block.start
    return blocks[-1].end


def merge_cached(blocks: list[Block]) -> None:
    """Make one block of the leading ones in the cache: no mask has to tell them apart again."""
    count = sum(block.state is BlockState.IN_CACHE for block in blocks)
    if count > 1:
        blocks[:count] = [Block(blocks[0].start, blocks[count - 1].end, 0, BlockState.IN_CACHE)]


def filled_end(blocks: list[Block]) -> int:
    """End of the leading run of blocks without masks."""
    end = blocks[0].start
    for block in blocks:
        if block.masks:
            break
        end = block.end
    return end


def retired_end(blocks: list[Block]) -> int:
    """End of the leading run of blocks that are in the cache or waiting for it."""
    end = blocks[0].start
    for block in blocks:
        if block.state is BlockState.ACTIVE:
            break
        end = block.end
    return end
