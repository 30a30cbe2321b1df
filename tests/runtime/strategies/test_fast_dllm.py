from __future__ import annotations

from dataclasses import replace

import pytest
from lopa.runtime.branches import Branch, Window
from lopa.runtime.strategies.fast_dllm import FastDLLM

from ..predictions import predictions

RULES = FastDLLM(
    new_tokens=8,
    steps=8,
    block_size=4,
    fill_by="threshold",
    threshold=0.9,
    factor=1.0,
    schedule="llada",
    cache="prefix",
    logit_shift=0,
    legacy=False,
)


def begin(rules: FastDLLM) -> Branch:
    branch = Branch(64, 293)
    rules.begin(branch, [1, 2, 3])
    rules.advance(branch, 0)
    return branch


def step(rules: FastDLLM, branch: Branch, *sure: int) -> list[int]:
    """One forward that is confident at `sure`; returns the positions it filled."""
    open_positions = branch.open_positions().tolist()
    window = rules.window([branch])
    found = predictions({p: 0.95 if p in sure else 0.5 for p in open_positions})
    filled = rules.fill(branch, found)
    for position, token in filled:
        branch.fill(position, token, 290)
    rules.settle(branch, window)
    rules.advance(branch, 0)
    return [position for position, _ in filled]


def full(commit_end: int) -> Window:
    return Window(0, commit_end, block_causal=False, keeps_row=False)


def test_a_prefix_cache_is_refreshed_at_each_block() -> None:
    branch = begin(RULES)
    assert RULES.window([branch]) == full(3)
    assert step(RULES, branch, 4, 5) == [4, 5]
    assert RULES.window([branch]) == Window(3, 3, block_causal=False)
    assert branch.span == (3, 7)
    assert step(RULES, branch) == [3]  # none is sure: the best, at equality the first
    assert step(RULES, branch) == [6]
    assert RULES.window([branch]) == full(7)
    assert branch.span == (0, 11)
    assert step(RULES, branch, 7, 8, 9, 10) == [7, 8, 9, 10]
    assert RULES.finished(branch)


def test_a_dual_cache_runs_the_block_alone() -> None:
    rules = replace(RULES, cache="dual")
    branch = begin(rules)
    assert rules.window([branch]) == full(11)
    step(rules, branch, 3)
    window = Window(3, 3, block_causal=False, end=7, slots=(0, 11))
    assert rules.window([branch]) == window
    assert (window.width([branch]), window.cached, window.context) == (4, 11, 11)


def test_no_cache_runs_everything() -> None:
    rules = replace(RULES, cache="none")
    branch = begin(rules)
    for _ in range(2):
        assert rules.window([branch]) == Window(0, 0, block_causal=False)
        assert branch.span == (0, 7)
        step(rules, branch)


@pytest.mark.parametrize(("legacy", "forwards"), [(False, 1), (True, 2)])
@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_the_legacy_loop_runs_one_more_forward(legacy: bool, forwards: int, cache: str) -> None:
    rules = replace(RULES, legacy=legacy, cache=cache)
    branch = begin(rules)
    step(rules, branch, 3, 4, 5, 6)
    assert branch.blocks[1].masks == 0
    assert (branch.focus == 2) == (forwards == 1)
    if legacy:
        assert step(rules, branch) == []
    assert branch.focus == 2


def test_a_dual_cache_stops_a_block_after_its_share_of_the_steps() -> None:
    """4 steps over 2 blocks: two forwards each; the next refresh may fill what was left."""
    rules = replace(RULES, cache="dual", steps=4)
    branch = begin(rules)
    step(rules, branch)
    step(rules, branch)
    assert branch.blocks[1].masks == 2
    assert (branch.focus, branch.span) == (2, (0, 11))
    assert step(rules, branch, 5, 6, 7) == [5, 6, 7]
    assert branch.span == (7, 11)
    kept = begin(replace(RULES, cache="prefix", steps=4))
    step(RULES, kept)
    step(RULES, kept)
    assert kept.focus == 1  # the prefix cache has no limit


def test_quotas_and_factor() -> None:
    rules = replace(RULES, fill_by="quota", steps=4)
    branch = begin(rules)
    assert step(rules, branch, 6) == [3, 6]
    assert step(rules, branch) == [4, 5]
    bounded = replace(RULES, fill_by="factor")
    assert step(bounded, begin(bounded), 4, 5) == [4, 5]


def test_shifted_logits_fill_the_first_token_of_a_block_at_its_refresh() -> None:
    rules = replace(RULES, logit_shift=1)
    branch = begin(rules)
    assert step(rules, branch, 4, 5, 6) == [3]
    assert branch.open_positions().tolist() == [4, 5, 6]
    assert step(rules, branch, 4, 5, 6) == [4, 5, 6]
    assert branch.focus == 2


def test_shifted_quotas_follow_dreams_schedule_from_its_second_step() -> None:
    rules = replace(RULES, logit_shift=1, fill_by="quota", schedule="dream", steps=6)
    branch = begin(rules)  # 3 steps a block: the first token, half of 3, the rest
    assert [len(step(rules, branch)) for _ in range(3)] == [1, 1, 2]


@pytest.mark.parametrize(("cache", "room"), [("none", 4), ("prefix", 0)])
def test_with_a_cache_no_lookahead_finishes_a_block(cache: str, room: int) -> None:
    rules = replace(RULES, cache=cache)
    branch = begin(rules)
    step(rules, branch, 3, 4)
    assert rules.lookahead_room(branch) == room + 1
    step(rules, branch, 5)
    assert branch.blocks[1].masks == 1
    assert rules.lookahead_room(branch) == room
