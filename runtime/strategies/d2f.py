"""Discrete diffusion forcing (D2F): pipelined blocks over a block-causal cache.

A block is added when the last one is decoded far enough; confident positions of every active block
are filled in parallel; filled blocks enter the cache in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..blocks import Block, BlockState, cached_end, mark_complete, retire_filled, retired_end
from ..branches import Branch, Window
from ..contract import Instance
from ..manifest import ModelInfo
from ..sampling import Predictions
from ..setting import count, setting, share
from .meanings import BLOCK_SIZE, CACHE, CONFIDENCE, FILL, STOP
from .protocol import BaseSettings, Fill, step_shape


@dataclass(frozen=True)
class D2FSettings(BaseSettings):
    """Settings of `D2F`."""

    trained_for: ClassVar[str] = "full"

    block_size: int | None = count(None, "masks of a block", shown=BLOCK_SIZE)
    add_threshold: float = share(
        0.1, "decoded share of the last block at which the next one is added"
    )
    complete_threshold: float = share(
        0.95, "decoded share of a block at which the one behind it may be forced"
    )
    window_attention: str | None = setting(
        None,
        "what the rows of a window see; given by name it lets d2f run on any model",
        shown="block-causal alone, full under lopa",
        choices=("full", "block-causal"),
    )
    fill: str = setting("threshold", FILL, choices=("threshold",))
    confidence: float = share(0.9, CONFIDENCE, needs={"fill": ("threshold",)}, alias="threshold")
    cache: str = setting("prefix", CACHE, choices=("prefix",))
    stop: str = setting("block", STOP, choices=("block", "none"))

    def serves(self, model: ModelInfo) -> bool:
        """Any model where the window attention is chosen by name."""
        return self.window_attention is not None or super().serves(model)

    def least_new_tokens(self, model: ModelInfo) -> int:
        """Whole blocks are added."""
        return self.block_size or model.block_size

    @property
    def fill_threshold(self) -> float:
        """Positions above it are filled."""
        return self.confidence

    def strategy(self, model: ModelInfo, new_tokens: int, alone: bool) -> D2F:
        """Build the strategy."""
        block = self.block_size or model.block_size
        attention = self.window_attention or ("block-causal" if alone else "full")
        return D2F(
            block_size=block,
            max_blocks=block_count(new_tokens, block),
            add_threshold=self.add_threshold,
            complete_threshold=self.complete_threshold,
            confidence=self.confidence,
            block_causal=attention == "block-causal",
            stops=self.stop != "none",
        )


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

    def shapes(self, prompt: int, branches: int) -> list[Instance]:
        """The smallest ones, as d2f adapts to what fits: the prompt with a block, then a block."""
        total = prompt + self.block_size
        return [
            step_shape(1, total, total, self.block_size),
            step_shape(branches, self.block_size, total, self.block_size),
        ]


def block_count(max_new_tokens: int, block_size: int) -> int:
    """Number of blocks D2F may add for a token budget."""
    return math.floor(max_new_tokens / block_size)
