from __future__ import annotations

from dataclasses import replace

import pytest
from lopa.runtime.blocks import BlockState
from lopa.runtime.branches import Branch, Window
from lopa.runtime.strategies.block_diffusion import BlockDiffusion

from ..predictions import predictions

STOP = 290
RULES = BlockDiffusion(
    block_size=4,
    small_block_size=4,
    new_tokens=8,
    steps=4,
    fill_by="threshold",
    threshold=0.9,
    cache="prefix",
    logit_shift=0,
    stop="none",
    stop_token_ids=(STOP,),
)
SHIFTED = replace(RULES, logit_shift=1, new_tokens=8, small_block_size=2)


def begin(rules: BlockDiffusion, prompt: int) -> Branch:
    branch = Branch(64, 293)
    rules.begin(branch, list(range(prompt)))
    rules.advance(branch, 0)
    return branch


def step(rules: BlockDiffusion, branch: Branch, *sure: int, token: int | None = None) -> list[int]:
    """One forward that is confident at `sure`; returns the positions it filled."""
    found = predictions({p: 0.95 if p in sure else 0.5 for p in branch.open_positions().tolist()})
    window = rules.window([branch])
    filled = rules.fill(branch, found)
    for position, guess in filled:
        branch.fill(position, guess if token is None else token, STOP)
    rules.settle(branch, window)
    rules.advance(branch, 0)
    return [position for position, _ in filled]


def rows(start: int, commit_end: int, end: int) -> Window:
    return Window(start, commit_end, True, end=end, slots=(0, start), keeps_row=False)


def test_prefill_denoise_store() -> None:
    """A prompt of 6: one whole block is encoded, its rest begins the block [4, 8)."""
    branch = begin(RULES, 6)
    assert RULES.window([branch]) == rows(0, 4, 4)
    assert step(RULES, branch) == []
    assert RULES.window([branch]) == rows(4, 4, 8)
    assert branch.open_positions().tolist() == [6, 7]
    assert step(RULES, branch, 6, 7) == [6, 7]
    assert RULES.window([branch]) == rows(4, 8, 8)
    assert step(RULES, branch) == []
    assert [(b.start, b.end, b.state) for b in branch.blocks] == [
        (0, 8, BlockState.IN_CACHE),
        (8, 12, BlockState.ACTIVE),
    ]
    assert RULES.length(6) == 16  # 14 rounded up


def test_a_prompt_of_whole_blocks_and_one_shorter_than_a_block() -> None:
    branch = begin(RULES, 8)
    assert RULES.window([branch]) == rows(0, 8, 8)
    step(RULES, branch)
    assert branch.open_positions().tolist() == [8, 9, 10, 11]
    assert begin(RULES, 3).open_positions().tolist() == [3]


def test_dynamic_needs_the_quota_above_the_threshold() -> None:
    rules = replace(RULES, steps=2)
    branch = begin(rules, 3)
    branch.fill(3, 7, STOP)
    rules.advance(branch, 0)
    step(rules, branch)  # stored
    assert step(rules, branch, 6) == [4, 6]  # quota 2, one is sure: the top two
    fresh = begin(rules, 3)
    fresh.fill(3, 7, STOP)
    rules.advance(fresh, 0)
    step(rules, fresh)
    assert step(rules, fresh, 4, 5, 7) == [4, 5, 7]


@pytest.mark.parametrize(("fill", "filled"), [("quota", [6, 7]), ("sequential", [4, 5])])
def test_static_and_sequential(fill: str, filled: list[int]) -> None:
    rules = replace(RULES, steps=2, fill_by=fill)
    branch = begin(rules, 4)
    step(rules, branch)
    assert step(rules, branch, 6, 7) == filled


def test_the_decode_ends_when_the_last_block_is_stored() -> None:
    branch = begin(RULES, 4)
    counts = []
    while not RULES.finished(branch):
        counts.append(len(step(RULES, branch, *range(64))))
    assert counts == [0, 4, 0, 4, 0]
    assert branch.length == 12
    uncached = replace(RULES, cache="none")
    branch, counts = begin(uncached, 4), []
    while not uncached.finished(branch):
        assert uncached.window([branch]) == Window(0, 0, block_causal=True)
        counts.append(len(step(uncached, branch, *range(64))))
    assert counts == [4, 4]


def test_storing_a_block_predicts_the_next_token() -> None:
    branch = begin(SHIFTED, 3)
    assert SHIFTED.length(3) == 9
    assert step(SHIFTED, branch) == [3]
    assert SHIFTED.window([branch]) == rows(0, 4, 4)
    assert branch.open_positions().tolist() == [4]
    assert step(SHIFTED, branch) == [4]
    assert branch.open_positions().tolist() == [5]  # of the small block [4, 6)
    while not SHIFTED.finished(branch):
        step(SHIFTED, branch, *range(64))
    assert branch.length == 9
    assert not branch.masked.any()


def test_a_small_block_runs_alone_once_its_first_token_is_known() -> None:
    rules = replace(SHIFTED, cache="dual", block_size=8, small_block_size=4, new_tokens=8, steps=8)
    branch = begin(rules, 2)
    assert rules.window([branch]) == rows(0, 8, 8)  # the buffer is empty
    step(rules, branch)
    alone = Window(0, 4, True, end=4, slots=(0, 8), keeps_row=False)
    assert rules.window([branch]) == alone
    step(rules, branch)
    assert branch.span == (4, 8)
    assert rules.window([branch]) == rows(0, 8, 8)  # position 4 is not known
    step(rules, branch, 4)
    assert rules.window([branch]) == Window(4, 8, True, end=8, slots=(0, 8), keeps_row=False)


def test_with_a_block_buffer_no_lookahead_finishes_a_small_block() -> None:
    """Its rows would not be those of the anchor."""
    rules = replace(RULES, cache="dual", block_size=8, small_block_size=4, new_tokens=8, steps=8)
    branch = begin(rules, 1)
    step(rules, branch)
    assert branch.open_positions().tolist() == [2, 3]
    assert rules.lookahead_room(branch) == 1
    step(rules, branch)
    assert branch.open_positions().tolist() == [3]
    assert rules.lookahead_room(branch) == 0
    assert replace(rules, cache="prefix").lookahead_room(branch) == 5


def test_a_lookahead_that_finishes_the_block_is_stored_if_it_wins() -> None:
    anchor, ahead = begin(RULES, 2), Branch(64, 293)
    step(RULES, anchor)
    ahead.copy_from(anchor)
    ahead.fill(3, 7, STOP)
    for branch in (ahead, anchor):
        RULES.advance(branch, 0)
    window = RULES.window([ahead, anchor])
    assert window == rows(0, 4, 4)
    assert len(ahead.open_positions()) == 0
    RULES.settle(ahead, window)
    assert ahead.blocks[0].state is BlockState.IN_CACHE
    RULES.settle(anchor, window)
    assert anchor.blocks[0].state is BlockState.ACTIVE


@pytest.mark.parametrize(
    ("stop", "length", "forwards"), [("token", 2, 1), ("block", 4, 3), ("none", 12, 7)]
)
def test_what_a_stop_token_ends(stop: str, length: int, forwards: int) -> None:
    """The first forward fills a stop token at 1, with masks behind it only."""
    rules = replace(RULES, stop=stop)
    branch = begin(rules, 1)
    count = 0
    while not rules.finished(branch):
        sure = (1,) if not count else tuple(range(64))
        step(rules, branch, *sure, token=STOP if not count else None)
        count += 1
    assert (branch.length, count) == (length, forwards)
    assert not branch.masked.any()


def test_a_stop_token_behind_a_mask_does_not_end_the_decode() -> None:
    rules = replace(RULES, stop="token")
    branch = begin(rules, 1)
    step(rules, branch, 2, token=STOP)
    assert not rules.finished(branch)
    step(rules, branch, 1)
    assert rules.finished(branch)
    assert branch.length == 3


def test_a_stop_token_in_the_prompt_is_data() -> None:
    rules = replace(RULES, stop="block")
    branch = Branch(64, 293)
    rules.begin(branch, [STOP] * 4)
    rules.advance(branch, 0)
    step(rules, branch)
    assert not rules.finished(branch)


def test_the_legacy_loop_never_encodes_a_prompt_of_one_block() -> None:
    rules = replace(SHIFTED, legacy=True)
    branch = begin(rules, 4)
    assert rules.window([branch]) == Window(4, 4, True, end=8, slots=(4, 4), keeps_row=False)
    assert begin(SHIFTED, 4).span == (4, 5)  # the prompt's forward predicts the next token
