from __future__ import annotations

import pytest
from lopa.runtime.branches import Branch
from lopa.runtime.scoring import BranchScore
from lopa.runtime.strategies.lopa import Lookahead

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


def test_extras_are_the_surest_positions_left() -> None:
    branch = Branch(16, 293)
    branch.start([1, 2])
    branch.extend(6)
    found = predictions({2: 0.9, 3: 0.4, 4: 0.6, 5: 0.4, 6: 0.8, 7: 0.1})
    branch.fill(2, 102, 290)
    branch.fill(6, 106, 290)
    chosen = [int(found.positions[i]) for i in Lookahead(3, BranchScore()).extras(branch, found)]
    assert chosen == [4, 3, 5]  # equals in position order
    assert len(Lookahead(9, BranchScore()).extras(branch, found)) == 4
    assert Lookahead(0, BranchScore()).extras(branch, found) == []
