from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lopa.runtime.blocks import Block, BlockState
from lopa.runtime.branches import (
    Branch,
    Window,
    block_causal_mask,
    flat_head_rows,
    layout_of,
    next_layouts,
    pack_inputs,
    plan_head_rows,
)
from lopa.runtime.engines.protocol import StepInputs

MASK, STOP = 293, 290


def make_branch(prompt: list[int], blocks: list[int], capacity: int = 64) -> Branch:
    """A branch with its prompt in the cache and the given masked blocks."""
    branch = Branch(capacity, MASK)
    branch.start(prompt)
    branch.blocks.append(Block(0, len(prompt), 0, BlockState.IN_CACHE, complete=True))
    for size in blocks:
        branch.extend(size)
    return branch


def empty_inputs(branches: int, window: int, context: int) -> StepInputs:
    """Input views with every value wrong until it is set."""
    rows = branches * window
    return StepInputs(
        np.full((branches, window), -7, np.int32),
        np.full((branches, window), -7, np.int32),
        np.ones((rows, rows), np.bool_),
        np.ones(context, np.bool_),
        np.full(rows, -7, np.int32),
        np.zeros(1, np.float32),
    )


def assert_consistent(branch: Branch) -> None:
    assert not branch.masked[branch.length :].any()
    ends = [block.end for block in branch.blocks]
    assert [block.start for block in branch.blocks] == [0, *ends[:-1]]
    assert ends[-1] == branch.length
    for block in branch.blocks:
        assert block.masks == int(branch.masked[block.start : block.end].sum())
        filled = block.end - block.start - block.masks
        assert block.progress == filled / (block.end - block.start)
    assert len(branch.masked_positions()) == sum(block.masks for block in branch.blocks)


@settings(deadline=None)
@given(st.data())
def test_bookkeeping_survives_any_fills_and_copies(data: st.DataObject) -> None:
    """Two branches trade places; the block counts always equal the bitmap."""
    prompt = data.draw(st.lists(st.sampled_from([1, MASK, STOP]), min_size=1, max_size=6))
    branch, other = make_branch(prompt, []), Branch(64, MASK)
    other.start([5] * 9)  # leftovers of an earlier prompt
    other.blocks.append(Block(0, 9, 0))
    other.extend(20)
    for action in data.draw(st.lists(st.sampled_from(["extend", "fill", "copy"]), max_size=25)):
        open_positions = branch.masked_positions().tolist()
        if action == "extend" and branch.length < 50:
            branch.extend(data.draw(st.integers(1, 8)))
        elif action == "fill" and open_positions:
            position = data.draw(st.sampled_from(open_positions))
            token = data.draw(st.sampled_from([3, 4, MASK, STOP]))
            stopped = branch.stopped
            branch.fill(position, token, STOP)
            assert branch.tokens[position] == token
            assert not branch.masked[position]
            assert branch.stopped == (stopped or token == STOP)
        elif action == "copy":
            other.copy_from(branch)
            assert_consistent(branch)
            branch, other = other, branch
        assert_consistent(branch)
        assert branch.tokens[: len(prompt)].tolist() == prompt


def test_copies_share_nothing() -> None:
    anchor = make_branch([1, 2], [4])
    anchor.extras, anchor.confidence, anchor.reward = ((3, 9),), 0.5, 0.25
    copy = Branch(64, MASK)
    copy.copy_from(anchor)
    assert (copy.extras, copy.confidence, copy.reward) == (((3, 9),), 0.5, 0.25)
    copy.fill(3, 9, STOP)
    copy.blocks[0].state = BlockState.ACTIVE
    copy.extend(4)
    assert anchor.masked_positions().tolist() == [2, 3, 4, 5]
    assert [block.masks for block in anchor.blocks] == [0, 4]
    assert anchor.blocks[0].state is BlockState.IN_CACHE
    assert anchor.length == 6


def test_start_forgets_the_prompt_before() -> None:
    branch = make_branch([1, 2], [4])
    branch.fill(2, STOP, STOP)
    branch.extras, branch.confidence, branch.reward = ((3, 9),), 0.5, 0.25
    branch.start([7])
    assert (branch.length, branch.stopped, branch.blocks) == (1, False, [])
    assert not branch.extras
    assert branch.confidence == branch.reward == 1.0
    assert not branch.masked.any()


def test_a_prompt_with_the_mask_token_is_data() -> None:
    branch = make_branch([MASK, 5, MASK], [2])
    assert branch.masked_positions().tolist() == [3, 4]
    with pytest.raises(AssertionError):
        branch.fill(0, 7, STOP)


def test_packing_pads_rows_and_branches() -> None:
    short, longer = make_branch([11, 12], [2]), make_branch([11, 12], [2, 1])
    short.fill(3, 40, STOP)
    inputs = empty_inputs(branches=3, window=4, context=5)
    pack_inputs(inputs, [longer, short], Window(2, 2, block_causal=False))
    assert inputs.input_ids.tolist() == [[MASK] * 4, [MASK, 40, MASK, MASK], [MASK] * 4]
    assert inputs.position_ids.tolist() == [[2, 3, 4, 5]] * 3
    assert inputs.cache_mask.tolist() == [True, True, False, False, False]
    expected = np.eye(12, dtype=np.bool_)
    expected[:3, :3] = True
    expected[4:6, 4:6] = True
    assert np.array_equal(inputs.isolation_mask, expected)


def test_packing_block_causal_windows() -> None:
    branch = make_branch([11, 12], [2, 1])
    inputs = empty_inputs(branches=1, window=4, context=2)
    pack_inputs(inputs, [branch], Window(2, 2, block_causal=True))
    assert inputs.isolation_mask.astype(int).tolist() == [
        [1, 1, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 1, 0],
        [0, 0, 0, 1],
    ]


def test_block_causal_mask_starts_inside_a_block() -> None:
    blocks = [Block(0, 3, 0), Block(3, 5, 0)]
    assert block_causal_mask(blocks, 2, 5).astype(int).tolist() == [
        [1, 0, 0],
        [1, 1, 1],
        [1, 1, 1],
    ]


def _plan(shift: int, window: Window, *branches: Branch) -> list[tuple[Any, ...]]:
    plans = plan_head_rows(branches, window, shift)
    return [(p.positions.tolist(), p.offsets.tolist(), p.rows.tolist(), p.masks) for p in plans]


def test_head_rows_with_logit_shift() -> None:
    """Row p - 1 predicts p; the window's first position needs the saved row."""
    first, second = make_branch([1, 2], [3]), make_branch([1, 2], [3])
    second.fill(2, 9, STOP)
    assert _plan(1, Window(2, 2, False), first, second) == [
        ([2, 3, 4], [-1, 0, 1], [-1, 0, 1], 3),
        ([3, 4], [0, 1], [2, 3], 2),
    ]
    plans = plan_head_rows([first, second], Window(2, 2, False), 1)
    assert flat_head_rows(plans, 8).tolist() == [0, 1, 8, 9]


def test_head_rows_of_a_cache_write_include_the_next_position() -> None:
    branch = make_branch([1, 2], [2, 2])
    branch.fill(2, 9, STOP)
    branch.fill(3, 9, STOP)
    branch.fill(4, 9, STOP)
    assert _plan(1, Window(2, 4, False), branch) == [([5], [2], [0], 1)]  # 4 is filled already
    assert _plan(1, Window(0, 2, False), make_branch([1, 2], [1])) == [([2], [1], [0], 1)]
    assert _plan(1, Window(0, 2, False), make_branch([1, 2], [])) == [([2], [1], [0], 0)]


def test_head_rows_without_shift() -> None:
    branch = make_branch([1, 2], [2])
    assert _plan(0, Window(2, 2, False), branch) == [([2, 3], [0, 1], [0, 1], 2)]
    assert _plan(0, Window(0, 2, False), branch) == [([2, 3], [2, 3], [0, 1], 2)]


def test_next_layouts_are_those_of_the_moves() -> None:
    """The window starts behind what is committed; the winner stays as long or grows by a block."""
    anchor, grown = make_branch([1, 2, 3, 4, 5], [8]), make_branch([1, 2, 3, 4, 5], [8, 8])
    found = dict(next_layouts([anchor, anchor], Window(0, 5, block_causal=True)))
    assert list(found.values()) == [8, 16]
    after = Window(5, 5, block_causal=True)
    assert list(found) == [layout_of([branch], after) for branch in (anchor, grown)]
    for layout, branch in zip(found, (anchor, grown), strict=True):
        assert layout.padded(3) == layout_of([branch] * 3, after)


def test_layouts_differ_in_all_that_masks_and_positions_depend_on() -> None:
    anchor, longer = make_branch([1, 2, 3, 4, 5], [8]), make_branch([1, 2, 3, 4, 5], [8, 4])
    windows = [
        Window(5, 5, False),
        Window(5, 5, True),
        Window(6, 6, False),
        Window(5, 5, False, end=13),
        Window(5, 5, False, slots=(2, 13)),
    ]
    layouts = {layout_of(branches, w) for w in windows for branches in ([anchor], [longer, anchor])}
    assert len(layouts) == 2 * len(windows)
    assert layout_of([anchor], windows[0]) == layout_of([anchor], Window(5, 13, False))
