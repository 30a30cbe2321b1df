from __future__ import annotations

import pytest
from lopa.runtime.blocks import (
    Block,
    BlockState,
    cached_end,
    mark_complete,
    retire_filled,
    retired_end,
)

ACTIVE, TO_CACHE, IN_CACHE = BlockState.ACTIVE, BlockState.TO_CACHE, BlockState.IN_CACHE


def blocks(*parts: tuple[int, BlockState]) -> list[Block]:
    """Blocks of 4 positions with the given masks left and states."""
    return [Block(4 * i, 4 * i + 4, masks, state) for i, (masks, state) in enumerate(parts)]


@pytest.mark.parametrize(("masks", "progress"), [(4, 0.0), (3, 0.25), (0, 1.0)])
def test_progress(masks: int, progress: float) -> None:
    assert Block(2, 6, masks).progress == progress


def test_a_block_is_complete_once_its_predecessor_is_decoded_enough() -> None:
    found = blocks((0, IN_CACHE), (1, ACTIVE), (2, ACTIVE), (4, ACTIVE))
    mark_complete(found, 0.75)
    assert [block.complete for block in found] == [False, True, True, False]
    found[1].masks = 4
    mark_complete(found, 0.75)
    assert [block.complete for block in found] == [False, True, True, False]  # never reset
    mark_complete(found, 0.5)
    assert found[3].complete


def test_filled_blocks_retire_in_order() -> None:
    found = blocks((0, IN_CACHE), (0, ACTIVE), (0, ACTIVE), (1, ACTIVE), (0, ACTIVE))
    retire_filled(found)
    assert [block.state for block in found] == [IN_CACHE, TO_CACHE, TO_CACHE, ACTIVE, ACTIVE]


def test_ends_of_cached_and_retired_runs() -> None:
    found = blocks((0, IN_CACHE), (0, TO_CACHE), (2, ACTIVE), (0, TO_CACHE))
    assert (cached_end(found), retired_end(found)) == (4, 8)
    assert (cached_end(found[:2]), retired_end(found[:2])) == (4, 8)
    assert (cached_end(found[:1]), retired_end(found[:1])) == (4, 4)
    assert (cached_end(found[2:]), retired_end(found[2:])) == (8, 8)


def test_copies_are_independent() -> None:
    block = Block(0, 4, 3, TO_CACHE, complete=True)
    copy = block.copy()
    assert copy == block
    copy.masks, copy.state = 0, IN_CACHE
    assert (block.masks, block.state) == (3, TO_CACHE)
