from __future__ import annotations

from dataclasses import replace

import pytest
from lopa.runtime.blocks import BlockState
from lopa.runtime.branches import Branch, Window
from lopa.runtime.strategies.d2f import D2F, block_count

from ..predictions import predictions

MASK, STOP = 293, 290
RULES = D2F(
    block_size=4,
    max_blocks=3,
    add_threshold=0.5,
    complete_threshold=0.75,
    confidence=0.9,
    block_causal=True,
)


def begin(rules: D2F = RULES, prompt: int = 3, blocks: int = 1) -> Branch:
    """A branch after its prompt was cached, with `blocks` masked blocks."""
    branch = Branch(64, MASK)
    rules.begin(branch, list(range(prompt)))
    branch.blocks[0].state = BlockState.IN_CACHE
    for _ in range(blocks):
        branch.extend(4)
    return branch


def fill(branch: Branch, *positions: int, token: int = 7) -> None:
    for position in positions:
        branch.fill(position, token, STOP)


def test_the_prompt_is_a_complete_block_that_waits_for_the_cache() -> None:
    branch = Branch(64, MASK)
    RULES.begin(branch, [5, 6, 7])
    (block,) = branch.blocks
    assert (block.start, block.end, block.masks, block.complete) == (0, 3, 0, True)
    assert block.state is BlockState.TO_CACHE
    assert branch.tokens[:3].tolist() == [5, 6, 7]
    assert RULES.window([branch]) == Window(0, 3, block_causal=True)


def test_the_first_iteration_adds_a_block() -> None:
    branch = Branch(64, MASK)
    RULES.begin(branch, [5, 6, 7])
    assert RULES.advance(branch, room=7)
    assert [(b.start, b.end) for b in branch.blocks] == [(0, 3), (3, 7)]
    assert branch.blocks[1].complete  # its predecessor, the prompt, is decoded
    assert branch.masked_positions().tolist() == [3, 4, 5, 6]


def test_a_block_is_added_at_the_threshold_and_one_at_a_time() -> None:
    branch = begin()
    fill(branch, 3)
    assert RULES.advance(branch, room=50)
    assert len(branch.blocks) == 2  # a quarter is decoded, half is asked for
    fill(branch, 4)
    assert RULES.advance(branch, room=50)
    assert len(branch.blocks) == 3
    assert RULES.advance(branch, room=50)
    assert len(branch.blocks) == 3


def test_completeness_follows_the_block_before() -> None:
    branch = begin(blocks=2)
    fill(branch, 3, 4)
    RULES.advance(branch, room=50)
    assert [block.complete for block in branch.blocks] == [True, True, False]
    fill(branch, 5)
    RULES.advance(branch, room=50)
    assert [block.complete for block in branch.blocks] == [True, True, True]


@pytest.mark.parametrize("reason", ["stopped", "budget"])
def test_no_block_is_due_after_a_stop_token_or_the_budget(reason: str) -> None:
    branch = begin(blocks=3 if reason == "budget" else 1)
    fill(branch, *branch.masked_positions().tolist(), token=STOP if reason == "stopped" else 7)
    count = len(branch.blocks)
    assert RULES.advance(branch, room=0)  # nothing was due, so nothing was refused
    assert len(branch.blocks) == count


def test_a_block_that_does_not_fit_is_reported() -> None:
    branch = begin()
    fill(branch, 3, 4)
    assert not RULES.advance(branch, room=7)  # 4 open rows and 4 more
    assert len(branch.blocks) == 2
    assert RULES.advance(branch, room=8)
    assert len(branch.blocks) == 3


def test_every_active_block_fills_what_is_strictly_above_the_threshold() -> None:
    branch = begin(replace(RULES, confidence=0.5), blocks=2)
    found = predictions({3: 0.5, 4: 0.75, 5: 0.1, 6: 0.2, 7: 0.75, 8: 0.5, 9: 0.6, 10: 0.1})
    filled = replace(RULES, confidence=0.5).fill(branch, found)
    assert filled == [(4, 104), (7, 107), (9, 109)]


def test_only_a_complete_block_is_forced() -> None:
    branch = begin(blocks=2)
    branch.blocks[1].complete = True
    found = predictions({3: 0.2, 4: 0.3, 5: 0.3, 6: 0.1, 7: 0.8, 8: 0.8, 9: 0.8, 10: 0.8})
    assert RULES.fill(branch, found) == [(4, 104)]  # the earlier of two equals
    branch.blocks[2].complete = True
    assert RULES.fill(branch, found) == [(4, 104), (7, 107)]


def test_the_measure_ranks_and_the_probability_passes() -> None:
    branch = begin()
    branch.blocks[1].complete = True
    ranks = {3: -1.0, 4: -0.1, 5: -2.0, 6: -3.0}
    chances = {3: 0.5, 4: 0.4, 5: 0.3, 6: 0.2}
    assert RULES.fill(branch, predictions(ranks, probability=chances)) == [(4, 104)]
    sure = predictions(ranks, probability={**chances, 6: 0.95})
    assert RULES.fill(branch, sure) == [(6, 106)]


def test_retired_and_cached_blocks_are_not_filled() -> None:
    branch = begin(blocks=2)
    branch.blocks[1].state = BlockState.TO_CACHE
    found = predictions({3: 1.0, 7: 0.95})
    assert RULES.fill(branch, found) == [(7, 107)]


def test_settling_moves_blocks_on() -> None:
    branch = begin(blocks=2)
    fill(branch, 3, 4, 5, 6)
    RULES.settle(branch, RULES.window([branch]))
    states = [block.state for block in branch.blocks]
    assert states == [BlockState.IN_CACHE, BlockState.TO_CACHE, BlockState.ACTIVE]
    window = RULES.window([branch])
    assert window == Window(3, 7, block_causal=True)
    RULES.settle(branch, window)
    assert branch.blocks[1].state is BlockState.IN_CACHE
    assert RULES.window([branch]) == Window(7, 7, block_causal=True)


def test_branches_share_the_shortest_cache_write() -> None:
    ahead, behind = begin(blocks=2), begin(blocks=2)
    for branch, blocks in ((ahead, 2), (behind, 1)):
        for block in branch.blocks[1 : 1 + blocks]:
            block.state = BlockState.TO_CACHE
    assert RULES.window([ahead, behind]) == Window(3, 7, block_causal=True)
    RULES.settle(ahead, Window(3, 7, block_causal=True))
    assert [block.state for block in ahead.blocks[1:]] == [
        BlockState.IN_CACHE,
        BlockState.TO_CACHE,
    ]


def test_finished_needs_no_mask_and_no_active_block() -> None:
    branch = begin()
    assert not RULES.finished(branch)
    fill(branch, 3, 4, 5, 6)
    assert not RULES.finished(branch)
    RULES.settle(branch, RULES.window([branch]))
    assert RULES.finished(branch)


@pytest.mark.parametrize(("tokens", "count"), [(64, 2), (95, 2), (96, 3), (31, 0)])
def test_block_count(tokens: int, count: int) -> None:
    assert block_count(tokens, 32) == count
