"""Branches: candidate sequences decoded side by side, and how they are packed into one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .blocks import Block
from .engines.protocol import StepInputs


class Branch:
    """One candidate sequence: tokens, its own bitmap of unfilled positions, and blocks.

    The bitmap decides what is masked, never the token id: a prompt that contains the mask token is
    data. Buffers are allocated once for `capacity` positions and reused by `copy_from`.
    """

    def __init__(self, capacity: int, mask_token_id: int) -> None:
        self.tokens = np.full(capacity, mask_token_id, np.int32)
        self.masked = np.zeros(capacity, np.bool_)
        self.mask_token_id = mask_token_id
        self.length = 0
        self.blocks: list[Block] = []
        self.prompt_length = 0
        self.focus = 0  # index of the block that the next forward works on, where there is one
        self.span: tuple[int, int] | None = None  # positions it may fill; None: every mask
        self.ended = False  # the rules are done with it, whatever its blocks say
        self.stopped = False  # a stop token was filled: no more blocks are added
        self.confidence = 1.0  # mean over the extra tokens of a lookahead branch; anchor 1
        self.reward = 1.0  # mean probability of the tokens filled to make this branch
        self.extras: tuple[tuple[int, int], ...] = ()  # (position, token) that a lookahead adds

    def start(self, prompt: Sequence[int]) -> None:
        """Make this the anchor of `prompt`, without blocks."""
        self.length = self.prompt_length = len(prompt)
        self.tokens[: self.length] = prompt
        self.masked[:] = False
        self.blocks.clear()
        self.focus, self.span, self.ended = 0, None, False
        self.stopped, self.confidence, self.reward, self.extras = False, 1.0, 1.0, ()

    def extend(self, size: int) -> Block:
        """Append one block of `size` masked positions."""
        block = Block(self.length, self.length + size, size)
        self.tokens[block.start : block.end] = self.mask_token_id
        self.masked[block.start : block.end] = True
        self.length = block.end
        self.blocks.append(block)
        return block

    def fill(self, position: int, token: int, stop_token_id: int) -> None:
        """Commit `token` at a masked position."""
        assert self.masked[position], position
        self.tokens[position] = token
        self.masked[position] = False
        for block in self.blocks:
            if block.start <= position < block.end:
                block.masks -= 1
        self.stopped = self.stopped or token == stop_token_id

    def masked_positions(self) -> NDArray[np.intp]:
        """Unfilled positions in ascending order."""
        return np.flatnonzero(self.masked[: self.length])

    def open_positions(self) -> NDArray[np.intp]:
        """Unfilled positions that the next forward may fill, in ascending order."""
        if self.span is None:
            return self.masked_positions()
        low, high = self.span[0], min(self.span[1], self.length)
        return low + np.flatnonzero(self.masked[low:high])

    def cut(self, length: int) -> None:
        """Drop everything from position `length` on; nothing before it may be masked."""
        assert not self.masked[:length].any()
        self.length = length
        self.masked[:] = False
        self.blocks = [block for block in self.blocks if block.start < length]
        self.blocks[-1].end, self.blocks[-1].masks = length, 0

    def copy_from(self, other: Branch) -> None:
        """Become a copy of `other`, reusing the buffers."""
        self.length, self.prompt_length = other.length, other.prompt_length
        self.focus, self.span, self.ended = other.focus, other.span, other.ended
        self.tokens[: self.length] = other.tokens[: self.length]
        self.masked[:] = False
        self.masked[: self.length] = other.masked[: self.length]
        self.blocks = [block.copy() for block in other.blocks]
        self.stopped, self.confidence = other.stopped, other.confidence
        self.reward, self.extras = other.reward, other.extras


@dataclass(frozen=True)
class Window:
    """What one step computes, in absolute positions, for branches that share a cache.

    Rows cover [start, end), by default to the end of each branch. The cache slots of `slots` count,
    but for those of the rows; by default all before the rows. The keys and values of
    [start, commit_end) go to the cache when a branch wins.
    """

    start: int
    commit_end: int
    block_causal: bool
    end: int | None = None
    slots: tuple[int, int] | None = None
    keeps_row: bool = True  # with logit shift 1: a saved row predicts the position at `start`

    @property
    def commits(self) -> int:
        """Number of positions written to the cache by this step."""
        return self.commit_end - self.start

    @property
    def cached(self) -> int:
        """Number of cache slots in use, those of the rows included."""
        return self.start if self.slots is None else self.slots[1] - self.slots[0]

    @property
    def context(self) -> int:
        """Cache slots that the step needs."""
        used = self.start if self.slots is None else self.slots[1]
        return max(used, self.commit_end, 1)

    def end_of(self, branch: Branch) -> int:
        """First position behind the rows of `branch`."""
        return branch.length if self.end is None else self.end

    def width(self, branches: Sequence[Branch]) -> int:
        """Rows of the longest branch."""
        return max(self.end_of(branch) for branch in branches) - self.start


@dataclass(frozen=True)
class HeadRows:
    """Which head rows belong to which position of one branch.

    `positions` are the masked ones of its span, then `commit_end` when it is not there yet and
    its row is to be saved;
    `offsets` are the window rows that predict them, -1 = the row saved by the last cache write;
    `rows` index the step's flat head outputs (-1 = saved).
    """

    positions: NDArray[np.intp]
    offsets: NDArray[np.intp]
    rows: NDArray[np.intp]
    masks: int  # the first `masks` entries are masked positions to predict


class Span(NamedTuple):
    """Positions [start, end)."""

    start: int
    end: int


@dataclass(frozen=True)
class Layout:
    """Positions and masks of one step: all of its inputs that no token changes.

    Two steps of the same shape and layout differ in tokens, head rows and temperature alone, so a
    layout can be written before it is known which branch wins.
    """

    start: int
    end: int | None
    slots: tuple[int, int]
    ends: tuple[int, ...]  # first position behind the rows of each branch
    blocks: (
        tuple[tuple[Span, ...], ...] | None
    )  # of each branch, in the window, with block-causal masks

    def padded(self, count: int) -> Layout:
        """Give padded branches the rows of the last one: it serves any smaller number of branches.

        Branches never see each other, so nothing that is read changes.
        """
        more = count - len(self.ends)
        blocks = None if self.blocks is None else self.blocks + self.blocks[-1:] * more
        return replace(self, ends=self.ends + self.ends[-1:] * more, blocks=blocks)


def layout_of(branches: Sequence[Branch], window: Window) -> Layout:
    """Return the layout of a step."""
    blocks = None
    if window.block_causal:
        blocks = tuple(_spans(branch.blocks, window.start) for branch in branches)
    ends = tuple(window.end_of(branch) for branch in branches)
    return Layout(window.start, window.end, window.slots or (0, window.start), ends, blocks)


def next_layouts(branches: Sequence[Branch], window: Window) -> Iterator[tuple[Layout, int]]:
    """Guess the layouts of the next step, for one branch, each with its window width.

    The window moves past what this step commits; whichever branch wins, all are then copies of it,
    as long as it is now or longer by one more block.
    """
    start = max(window.start, window.commit_end)
    slots = window.slots or (0, start)
    for branch in {branch.length: branch for branch in branches}.values():
        blocks = _spans(branch.blocks, start)
        size = branch.blocks[-1].end - branch.blocks[-1].start
        longer = (*blocks, Span(branch.length, branch.length + size))
        for spans, length in ((blocks, branch.length), (longer, branch.length + size)):
            end = length if window.end is None else window.end
            if end > start:
                causal = (spans,) if window.block_causal else None
                yield Layout(start, window.end, slots, (end,), causal), end - start


def pack_inputs(inputs: StepInputs, branches: Sequence[Branch], window: Window) -> None:
    """Write tokens, positions and masks of `branches` into the step's input views.

    Padded rows and padded branches see only themselves and are seen by nobody.
    """
    write_layout(inputs, layout_of(branches, window))
    write_tokens(inputs, branches, window)


def write_layout(inputs: StepInputs, layout: Layout) -> None:
    """Write positions and masks into the step's input views."""
    batch, width = inputs.input_ids.shape
    assert batch >= len(layout.ends)
    inputs.isolation_mask[:] = False
    np.fill_diagonal(inputs.isolation_mask, True)
    inputs.cache_mask[:] = False
    inputs.cache_mask[slice(*layout.slots)] = True
    inputs.cache_mask[layout.start : layout.end] = False
    inputs.position_ids[:] = layout.start + np.arange(width, dtype=np.int32)
    for index, end in enumerate(layout.ends):
        rows = slice(index * width, index * width + end - layout.start)
        inputs.isolation_mask[rows, rows] = (
            True
            if layout.blocks is None
            else block_causal_mask(layout.blocks[index], layout.start, end)
        )


def write_tokens(inputs: StepInputs, branches: Sequence[Branch], window: Window) -> None:
    """Write tokens into the step's input views."""
    inputs.input_ids[:] = branches[0].mask_token_id
    for index, branch in enumerate(branches):
        end = window.end_of(branch)
        inputs.input_ids[index, : end - window.start] = branch.tokens[window.start : end]


def block_causal_mask(blocks: Sequence[Block | Span], start: int, end: int) -> NDArray[np.bool_]:
    """Mask [n, n] over positions [start, end): a row sees its own block and earlier ones."""
    ids = np.zeros(end - start, np.int32)
    for index, block in enumerate(blocks):
        ids[max(block.start - start, 0) : max(block.end - start, 0)] = index
    return np.asarray(ids[:, None] >= ids[None, :])


def plan_head_rows(branches: Sequence[Branch], window: Window, shift: int) -> list[HeadRows]:
    """Choose the head rows of each branch.

    With logit shift 1, row p - 1 predicts position p; the first position of the window is
    predicted by the row that the last cache-writing step saved, or by its own where none is kept.
    """
    plans = []
    count = 0
    for branch in branches:
        positions = branch.open_positions()
        masks = len(positions)
        # A position that is filled already needs no row, one that is masked has it.
        if shift and window.keeps_row and window.commits and window.commit_end >= branch.length:
            positions = np.append(positions, window.commit_end)
        offsets = np.maximum(positions - shift - window.start, -1 if window.keeps_row else 0)
        inside = offsets >= 0
        rows = np.where(inside, count + np.cumsum(inside) - 1, -1)
        count += int(inside.sum())
        plans.append(HeadRows(positions, offsets, rows, masks))
    return plans


def flat_head_rows(plans: Sequence[HeadRows], width: int) -> NDArray[np.intp]:
    """The `head_rows` input of a step with window width `width`: branch * width + offset."""
    return np.concatenate(
        [index * width + plan.offsets[plan.offsets >= 0] for index, plan in enumerate(plans)]
    )


def _spans(blocks: Sequence[Block], start: int) -> tuple[Span, ...]:
    """Bounds of the blocks that reach beyond `start`."""
    return tuple(Span(block.start, block.end) for block in blocks if block.end > start)
