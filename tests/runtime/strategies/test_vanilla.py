from __future__ import annotations

import pytest
from lopa.runtime.branches import Branch, Window
from lopa.runtime.strategies.vanilla import Vanilla

from ..predictions import predictions


def begin(rules: Vanilla) -> Branch:
    branch = Branch(64, 293)
    rules.begin(branch, [1, 2, 3])
    return branch


def test_everything_is_masked_from_the_start_and_nothing_is_cached() -> None:
    rules = Vanilla(new_tokens=5, steps=2)
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
    rules = Vanilla(tokens, steps)
    branch = begin(rules)
    found = []
    for step in range(steps):
        left = branch.masked_positions().tolist()
        filled = rules.fill(branch, predictions(dict.fromkeys(left, 0.5)), step)
        for position, token in filled:
            branch.fill(position, token, 290)
        rules.settle(branch, rules.window([branch]))
        found.append(len(filled))
    assert found == counts
    assert rules.finished(branch)


def test_the_surest_go_first_and_are_given_in_position_order() -> None:
    rules = Vanilla(new_tokens=6, steps=3)
    found = predictions({3: 0.1, 4: 0.8, 5: 0.3, 6: 0.9, 7: 0.3, 8: 0.3})
    assert rules.fill(begin(rules), found, 1) == [(4, 104), (6, 106)]
    flat = predictions(dict.fromkeys(range(3, 9), 0.5))
    assert rules.fill(begin(rules), flat, 1) == [(3, 103), (4, 104)]  # ties by position
