"""Windows that end before the branch does, and slots that do not count."""

from __future__ import annotations

import numpy as np
import pytest
from lopa.runtime.blocks import Block, BlockState, filled_end, merge_cached
from lopa.runtime.branches import Branch, Window, pack_inputs, plan_head_rows

from .test_branches import MASK, STOP, empty_inputs, make_branch


def test_a_window_with_an_end_and_slots_on_both_sides() -> None:
    """The dual cache: rows 4 and 5 of 8 positions, their own slots switched off."""
    branch = make_branch([11, 12, 13, 14], [2, 2])
    branch.fill(5, 40, STOP)
    window = Window(4, 4, False, end=6, slots=(0, 8))
    inputs = empty_inputs(branches=1, window=3, context=9)
    pack_inputs(inputs, [branch], window)
    assert inputs.input_ids.tolist() == [[MASK, 40, MASK]]
    assert inputs.cache_mask.tolist() == [True] * 4 + [False] * 2 + [True] * 2 + [False]
    assert inputs.isolation_mask.astype(int).tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    assert (window.width([branch]), window.cached, window.context) == (2, 8, 8)


def test_slots_before_the_first_that_counts() -> None:
    window = Window(4, 6, True, end=6, slots=(2, 4))
    inputs = empty_inputs(branches=1, window=2, context=6)
    pack_inputs(inputs, [make_branch([11, 12, 13, 14], [2])], window)
    assert inputs.cache_mask.tolist() == [False, False, True, True, False, False]
    assert (window.cached, window.context) == (2, 6)


def test_only_the_span_is_predicted() -> None:
    branch = make_branch([1, 2], [2, 4])
    branch.span = (3, 6)
    assert branch.open_positions().tolist() == [3, 4, 5]
    (plan,) = plan_head_rows([branch], Window(2, 2, False), shift=0)
    assert (plan.positions.tolist(), plan.offsets.tolist()) == ([3, 4, 5], [1, 2, 3])
    branch.span = (6, 99)
    assert branch.open_positions().tolist() == [6, 7]
    branch.span = (9, 10)
    assert branch.open_positions().tolist() == []


def test_without_a_saved_row_the_first_position_is_predicted_by_its_own() -> None:
    branch = make_branch([1, 2], [3])
    (plan,) = plan_head_rows([branch], Window(2, 5, False, keeps_row=False), shift=1)
    assert (plan.positions.tolist(), plan.offsets.tolist()) == ([2, 3, 4], [0, 0, 1])


def test_cutting_a_branch() -> None:
    branch = make_branch([1, 2], [3, 3])
    for position in (2, 3):
        branch.fill(position, 7, STOP)
    with pytest.raises(AssertionError):
        branch.cut(5)  # position 4 is masked
    branch.cut(4)
    assert (branch.length, branch.masked.any()) == (4, np.False_)
    assert [(b.start, b.end, b.masks) for b in branch.blocks] == [(0, 2, 0), (2, 4, 0)]


def test_copies_know_what_the_next_forward_works_on() -> None:
    branch, copy = make_branch([1, 2], [3]), Branch(64, MASK)
    branch.focus, branch.span, branch.ended = 1, (2, 4), True
    branch.blocks[1].steps = 3
    copy.copy_from(branch)
    assert (copy.focus, copy.span, copy.ended, copy.prompt_length) == (1, (2, 4), True, 2)
    assert copy.blocks[1].steps == 3
    copy.start([1])
    assert (copy.focus, copy.span, copy.ended) == (0, None, False)


def test_cached_blocks_merge() -> None:
    states = [BlockState.IN_CACHE, BlockState.IN_CACHE, BlockState.ACTIVE]
    blocks = [Block(4 * i, 4 * i + 4, 2 * (i > 1), state) for i, state in enumerate(states)]
    assert filled_end(blocks) == 8
    merge_cached(blocks)
    assert blocks == [Block(0, 8, 0, BlockState.IN_CACHE), Block(8, 12, 2)]
    merge_cached(blocks)
    assert len(blocks) == 2
