from __future__ import annotations

import pytest
from lopa.runtime.branches import Branch, Window
from lopa.runtime.strategies.vanilla import Vanilla

from ..predictions import predictions


def plain(tokens: int, steps: int, schedule: str = "dream") -> Vanilla:
    """One block of all new tokens."""
    return Vanilla(tokens, steps, tokens, schedule)


def begin(rules: Vanilla, step: int = 0) -> Branch:
    """A branch at the start of a step of its first block."""
    branch = Branch(64, 293)
    rules.begin(branch, [1, 2, 3])
    branch.blocks[1].steps = step
    rules.advance(branch, 0)
    return branch


def test_everything_is_masked_from_the_start_and_nothing_is_cached() -> None:
    rules = plain(5, 2)
    branch = begin(rules)
    assert branch.masked_positions().tolist() == [3, 4, 5, 6, 7]
    assert rules.window([branch]) == Window(0, 0, block_causal=False)
    assert rules.advance(branch, 0)
    assert not rules.finished(branch)


@pytest.mark.parametrize(
    ("tokens", "steps", "counts"),
    [
        (8, 1, [8]),
        (8, 8, [0, 1, 1, 1, 1, 1, 1, 2]),
        (8, 3, [2, 2, 4]),
        (4, 8, [0, 0, 0, 0, 0, 1, 1, 2]),
    ],
)
def test_schedule(tokens: int, steps: int, counts: list[int]) -> None:
    """Step i fills trunc(masks * (1 - t[i+1] / t[i])); the last one all that remain."""
    rules = plain(tokens, steps)
    branch = begin(rules)
    found = []
    for _ in range(steps):
        rules.advance(branch, 0)
        left = branch.masked_positions().tolist()
        filled = rules.fill(branch, predictions(dict.fromkeys(left, 0.5)))
        for position, token in filled:
            branch.fill(position, token, 290)
        rules.settle(branch, rules.window([branch]))
        found.append(len(filled))
    assert found == counts
    assert rules.finished(branch)


def test_the_surest_go_first_and_are_given_in_position_order() -> None:
    rules = plain(6, 3)
    found = predictions({3: 0.1, 4: 0.8, 5: 0.3, 6: 0.9, 7: 0.3, 8: 0.3})
    assert rules.fill(begin(rules, 1), found) == [(4, 104), (6, 106)]
    flat = predictions(dict.fromkeys(range(3, 9), 0.5))
    assert rules.fill(begin(rules, 1), flat) == [(3, 103), (4, 104)]  # ties by position


def test_llada_fills_its_quota_block_by_block() -> None:
    """10 tokens in blocks of 4, 4 and 2; 9 steps are 3 of each block."""
    rules = Vanilla(new_tokens=10, steps=9, block_size=4, schedule="llada")
    branch = begin(rules)
    spans, counts = [], []
    while not rules.finished(branch):
        rules.advance(branch, 0)
        spans.append(branch.span)
        left = branch.open_positions().tolist()
        filled = rules.fill(branch, predictions(dict.fromkeys(left, 0.5)))
        for position, token in filled:
            branch.fill(position, token, 290)
        rules.settle(branch, rules.window([branch]))
        counts.append(len(filled))
    assert spans == [(0, 7)] * 3 + [(0, 11)] * 3 + [(0, 13)] * 2
    assert counts == [2, 1, 1, 2, 1, 1, 1, 1]


def test_a_lookahead_that_finishes_a_block_goes_on_in_the_next() -> None:
    rules = Vanilla(new_tokens=4, steps=4, block_size=2, schedule="llada")
    anchor, lookahead = begin(rules), Branch(64, 293)
    anchor.fill(3, 7, 290)
    lookahead.copy_from(anchor)
    lookahead.fill(4, 8, 290)
    for branch in (anchor, lookahead):
        rules.advance(branch, 0)
    assert anchor.open_positions().tolist() == [4]
    assert lookahead.open_positions().tolist() == [5, 6]
    assert rules.lookahead_room(anchor) == len(anchor.masked_positions()) - 1
