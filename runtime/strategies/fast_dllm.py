"""Fast-dLLM: confidence-driven parallel filling, block by block, with approximate caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..blocks import Block
from ..branches import Branch, Window
from ..contract import Instance
from ..manifest import ModelInfo
from ..sampling import Predictions
from ..setting import count, setting, share
from .meanings import BLOCK_SIZE, BY_SHIFT, CACHE, CONFIDENCE, FILL, REVISION, SCHEDULE, STEPS, STOP
from .protocol import BaseSettings, Fill, step_shape
from .selection import above_or_best, count_at, fills, surest, within_factor
from .vanilla import (
    SCHEDULES,
    begin_masked,
    default_schedule,
    steps_per_block,
    uneven_steps,
)


@dataclass(frozen=True)
class FastDLLMSettings(BaseSettings):
    """Settings of `FastDLLM`."""

    trained_for: ClassVar[str] = "full"
    masks_budget: ClassVar[bool] = True

    block_size: int | None = count(None, "masks of a block", shown=BLOCK_SIZE)
    fill: str | None = setting(
        None,
        FILL,
        shown="threshold, or factor where that is given",
        choices=("threshold", "factor", "quota"),
    )
    confidence: float = share(0.9, CONFIDENCE, needs={"fill": ("threshold",)}, alias="threshold")
    factor: float | None = setting(
        None,
        "with n tokens filled each has a probability of 1 - factor / (n + 1) or more",
        shown="1",
        above=0,
        needs={"fill": ("factor",)},
    )
    steps: int | None = count(None, STEPS, shown="one per new token")
    schedule: str | None = setting(
        None, SCHEDULE, shown=BY_SHIFT, choices=tuple(SCHEDULES), needs={"fill": ("quota",)}
    )
    cache: str = setting("prefix", CACHE, choices=("prefix", "none", "dual"))
    revision: str = setting("v1", REVISION, choices=("v1", "legacy"))
    stop: str = setting("none", STOP, choices=("none",))

    def __post_init__(self) -> None:
        if self.fill is None:
            object.__setattr__(self, "fill", "threshold" if self.factor is None else "factor")

    def budget_faults(self, new_tokens: int, model: ModelInfo) -> list[str]:
        """Steps must spread evenly over the blocks."""
        return uneven_steps(self.steps, new_tokens, self.block_size or model.block_size)

    @property
    def fill_threshold(self) -> float | None:
        """Positions that reach it are filled."""
        return self.confidence if self.fill == "threshold" else None

    def strategy(self, model: ModelInfo, new_tokens: int, alone: bool) -> FastDLLM:
        """Build the strategy."""
        assert self.fill is not None
        return FastDLLM(
            new_tokens=new_tokens,
            steps=self.steps or new_tokens,
            block_size=self.block_size or model.block_size,
            fill_by=self.fill,
            threshold=self.confidence,
            factor=self.factor or 1.0,
            schedule=self.schedule or default_schedule(model),
            cache=self.cache,
            logit_shift=model.logit_shift,
            legacy=self.revision == "legacy",
        )


@dataclass(frozen=True)
class FastDLLM:
    """All masks from the start, blocks from left to right, a cache refreshed at each block.

    `cache` "none": every forward computes the whole sequence. "prefix": the first forward of a
    block does, keys and values before the block are kept, later forwards start at the block.
    "dual": keys and values of all positions are kept, later forwards compute the block alone.

    With `logit_shift` 1 and a cache, the refresh fills only the first token of the block, always:
    no row of the later forwards predicts it.
    """

    new_tokens: int
    steps: int  # in all; spreads the counts of fill "quota"
    block_size: int
    fill_by: str  # "threshold" | "factor" | "quota"
    threshold: float
    factor: float
    schedule: str  # of fill "quota"
    cache: str  # "none" | "prefix" | "dual"
    logit_shift: int
    legacy: bool  # the first public revision: see `_done`

    def begin(self, branch: Branch, prompt: Sequence[int]) -> None:
        """Prompt and all new tokens from the start."""
        begin_masked(branch, prompt, self.new_tokens, self.block_size)

    def advance(self, branch: Branch, room: int) -> bool:
        """Work on the first block that is not done."""
        for index, block in enumerate(branch.blocks[1:], 1):
            if not self._done(block):
                whole = self.cache == "none" or not block.steps
                branch.focus, branch.span = index, (0 if whole else block.start, block.end)
                break
        return True

    def finished(self, branch: Branch) -> bool:
        """A branch ends when every block is done."""
        return all(self._done(block) for block in branch.blocks[1:])

    def window(self, branches: Sequence[Branch]) -> Window:
        """The whole sequence at a refresh, else what the cache does not hold.

        With a cache all branches are in the same block and past its refresh, or there is only the
        anchor.
        """
        branch = branches[0]
        block = branch.blocks[branch.focus]
        if self.cache == "none":
            return Window(0, 0, block_causal=False)
        if not block.steps:
            kept = block.start if self.cache == "prefix" else branch.length
            return Window(0, kept, block_causal=False, keeps_row=False)
        if self.cache == "prefix":
            return Window(block.start, block.start, block_causal=False)
        return Window(
            block.start, block.start, block_causal=False, end=block.end, slots=(0, branch.length)
        )

    def fill(self, branch: Branch, predictions: Predictions) -> list[Fill]:
        """Fill what the rule accepts among the masks of the block."""
        block = branch.blocks[branch.focus]
        if self._first_token_only(block):
            return fills(predictions, np.flatnonzero(predictions.positions == block.start))
        if not len(predictions.positions):
            return []
        if self.fill_by == "threshold":
            return fills(predictions, above_or_best(predictions, self.threshold))
        if self.fill_by == "factor":
            return fills(predictions, within_factor(predictions, self.factor))
        count = count_at(self._counts(block), block.steps, len(predictions.positions))
        return fills(predictions, surest(predictions, count))

    def settle(self, branch: Branch, window: Window) -> None:
        """Count the forwards of the block; the cache is refreshed, never extended."""
        branch.blocks[branch.focus].steps += 1

    def lookahead_room(self, branch: Branch) -> int:
        """All masks but one; with a cache those of the block, so that no lookahead needs a refresh.

        A refresh therefore always runs the anchor alone. Without one, a branch that has no mask
        left would be finished and not be run.
        """
        block = branch.blocks[branch.focus]
        if self.cache == "none":
            return max(len(branch.masked_positions()) - 1, 0)
        return 0 if self._done(block) else max(block.masks - 1, 0)

    def shapes(self, prompt: int, branches: int) -> list[Instance]:
        """Without a cache the whole sequence; else a refresh of it, and what the cache lacks."""
        total = prompt + self.new_tokens
        if self.cache == "none":
            return [step_shape(branches, total, total, self.block_size)]
        dual = self.cache == "dual"
        later = min(self.block_size, self.new_tokens) if dual else self.new_tokens
        return [
            step_shape(1, total, total, self.block_size),
            step_shape(branches, later, total, self.block_size),
        ]

    def _done(self, block: Block) -> bool:
        """Tell whether a block gets no further forward.

        The legacy revision, and the published loop for shifted logits, run a cached forward after
        each refresh even if no mask is left. The current one stops a dual cache's block after its
        share of the steps, masks or not.
        """
        if self.cache != "none" and (self.legacy or self.logit_shift) and block.steps == 1:
            return False
        if self.cache == "dual" and not self.legacy and not self.logit_shift:
            limit = steps_per_block(self.steps, self.new_tokens, self.block_size)
            return not block.masks or block.steps >= limit
        return not block.masks

    def _first_token_only(self, block: Block) -> bool:
        return self.cache != "none" and bool(self.logit_shift) and not block.steps

    def _counts(self, block: Block) -> tuple[int, ...]:
        size = block.end - block.start
        steps = steps_per_block(self.steps, self.new_tokens, self.block_size)
        if self.schedule == "dream" and self.logit_shift and self.cache != "none":
            return SCHEDULES["dream"](size - 1, steps, 1)
        return SCHEDULES[self.schedule](size, steps)
