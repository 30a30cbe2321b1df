from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lopa.runtime.branches import Branch
from lopa.runtime.sampling import Predictions
from lopa.runtime.scoring import BranchScore
from lopa.runtime.strategies.lopa import Lookahead, confirmed_tokens, nested_sizes

from ..predictions import predictions


@pytest.mark.parametrize(
    ("scores", "winner"),
    [([0.1, 0.3, 0.2], 1), ([0.3, 0.3, 0.3], 0), ([0.1, 0.3, 0.3], 1), ([0.2], 0)],
)
def test_the_highest_score_wins_and_ties_go_to_the_earlier(
    scores: list[float], winner: int
) -> None:
    assert Lookahead(2, BranchScore()).choose(scores) == winner


def test_the_anchor_may_be_made_to_win() -> None:
    assert Lookahead(2, BranchScore(), anchor_wins=True).choose([0.9, 0.8, 0.1]) == 2


def after_the_first_fill() -> tuple[Branch, Predictions]:
    """A block of 6 at position 2 whose first mask is filled, and what was predicted for all."""
    branch = Branch(16, 293)
    branch.start([1, 2])
    branch.extend(6)
    branch.fill(2, 102, 290)
    return branch, predictions({2: 0.9, 3: 0.4, 4: 0.6, 5: 0.4, 6: 0.8, 7: 0.1})


def test_extras_are_the_surest_positions_left() -> None:
    branch, found = after_the_first_fill()
    branch.fill(6, 106, 290)
    chosen = Lookahead(3, BranchScore()).extras(branch, found, 4)
    assert [found.positions[extras].tolist() for extras in chosen] == [[4], [3], [5]]  # equals: low
    assert len(Lookahead(9, BranchScore()).extras(branch, found, 1)) == 4
    assert Lookahead(0, BranchScore()).extras(branch, found, 4) == []
    assert Lookahead(3, BranchScore()).extras(branch, found, 0) == []


def test_nested_lookaheads_fill_more_and_more_of_the_surest_positions() -> None:
    branch, found = after_the_first_fill()
    lookahead = Lookahead(3, BranchScore(), shape="nested")
    chosen = [found.positions[extras].tolist() for extras in lookahead.extras(branch, found, 9)]
    assert chosen == [[6, 4], [6, 4, 3], [6, 4, 3, 5, 7]]
    chosen = [found.positions[extras].tolist() for extras in lookahead.extras(branch, found, 3)]
    assert chosen == [[6], [6, 4], [6, 4, 3]]  # one mask stays, as the base asked for


@pytest.mark.parametrize(
    ("most", "branches", "sizes"),
    [
        (32, 4, [2, 6, 13, 32]),
        (32, 1, [32]),
        (3, 7, [1, 2, 3]),
        (1, 4, [1]),
        (100, 2, [10, 100]),
    ],
)
def test_nested_sizes(most: int, branches: int, sizes: list[int]) -> None:
    assert nested_sizes(most, branches) == sizes


@given(st.integers(1, 500), st.integers(1, 16))
def test_nested_sizes_reach_every_mask(most: int, branches: int) -> None:
    sizes = nested_sizes(most, branches)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
    assert 1 <= len(sizes) <= branches


def nested(*extras: dict[int, int]) -> list[Branch]:
    """Branches that filled `extras`, then the anchor."""
    branches = [Branch(16, 293) for _ in range(len(extras) + 1)]
    for branch, own in zip(branches, extras, strict=False):
        branch.extras = tuple(own.items())
    return branches


TWO = {4: 104, 6: 106}
THREE = {**TWO, 5: 105}
FIVE = {**THREE, 7: 107, 8: 108}
SURE = {4: 0.9, 5: 0.9, 6: 0.9, 7: 0.9, 8: 0.9}


@pytest.mark.parametrize(
    ("of_two", "of_three", "of_five", "of_anchor", "scores"),
    [
        (SURE, SURE, SURE, SURE, (2, 3, 5, 0)),  # the anchor alone confirms all
        ({}, {}, {}, {**SURE, 7: 0.4}, (2, 3, -1, 0)),  # not sure enough for the last
        ({}, {8: 0.9, 7: 0.5}, {}, {**SURE, 7: 0.4}, (2, 3, 5, 0)),  # but the branch of three is
        ({5: 0.9}, SURE, SURE, {4: 0.9}, (-1, -1, -1, 0)),  # no chain without its first link
        ({5: 0.9}, SURE, SURE, {4: 0.9, 6: 0.5}, (2, 3, 5, 0)),
    ],
)
def test_a_branch_is_confirmed_by_the_anchor_or_a_confirmed_smaller_one(
    of_two: dict[int, float],
    of_three: dict[int, float],
    of_five: dict[int, float],
    of_anchor: dict[int, float],
    scores: tuple[float, ...],
) -> None:
    views = [predictions(view) for view in (of_two, of_three, of_five, of_anchor)]
    lookahead = Lookahead(3, BranchScore(), shape="nested", confirm=0.5)
    found = lookahead.scores(nested(TWO, THREE, FIVE), views, 320)
    assert found == scores
    assert lookahead.choose(found) == (scores.index(max(scores)))


def test_a_token_is_confirmed_by_its_probability_whatever_ranks_positions() -> None:
    view = predictions({4: -0.1}, probability={4: 0.6})  # an entropy as measure of confidence
    assert confirmed_tokens(nested({4: 104}), [predictions({}), view], 0.5) == (1, 0)
    assert confirmed_tokens(nested({4: 104}), [predictions({}), view], 0.7) == (-1, 0)


def test_another_token_confirms_nothing() -> None:
    branches = nested({4: 7})
    assert confirmed_tokens(branches, [predictions({}), predictions({4: 1.0})], 0.0) == (-1, 0)
