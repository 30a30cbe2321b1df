from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lopa.runtime.strategies.selection import (
    above,
    above_or_best,
    count_at,
    dream_counts,
    even_counts,
    fills,
    surest,
    within_factor,
)

from ..predictions import predictions


def test_fills_are_in_position_order() -> None:
    found = predictions({4: 0.5, 6: 0.9, 9: 0.7})
    assert fills(found, [2, 0]) == [(4, 104), (9, 109)]
    assert fills(found, []) == []


def test_surest_first_and_ties_by_position() -> None:
    found = predictions({4: 0.5, 6: 0.9, 9: 0.5, 11: 0.1})
    assert surest(found, 3).tolist() == [1, 0, 2]
    assert surest(found, 9).tolist() == [1, 0, 2, 3]


def test_thresholds_compare_the_probability() -> None:
    found = predictions({4: 0.5, 6: 0.75, 9: 0.8}, probability={4: 0.75, 6: 0.5, 9: 0.8})
    assert above(found, 0.75).tolist() == [2]
    assert above(found, 0.75, inclusive=True).tolist() == [0, 2]
    assert above_or_best(found, 0.9).tolist() == [2]
    ranked = predictions({4: 0.1, 6: 0.9}, probability={4: 0.8, 6: 0.2})
    assert above_or_best(ranked, 0.7).tolist() == [0, 1]  # one passes, the other is the best


@pytest.mark.parametrize(
    ("confidence", "accepted"),
    [
        ([0.1], [0]),  # one candidate: always
        ([0.1, 0.05], [0, 1]),  # the last one is the first to fail: accepted too
        ([0.9, 0.7, 0.1], [0, 1, 2]),  # 0.7 >= 1 - 1/3; 0.1 is the last
        ([0.9, 0.6, 0.5], [0]),  # 0.6 < 1 - 1/3
        ([0.9, 0.7, 0.76, 0.1], [0, 2]),  # in order 0.9, 0.76; 0.7 < 1 - 1/4
        ([0.99, 0.9, 0.8, 0.85], [0, 1, 2, 3]),  # in order 0.85 >= 3/4, 0.8 >= 4/5
    ],
)
def test_factor(confidence: list[float], accepted: list[int]) -> None:
    found = predictions(dict(enumerate(confidence)))
    assert sorted(within_factor(found, 1.0).tolist()) == accepted


def test_a_larger_factor_accepts_more() -> None:
    found = predictions({0: 0.9, 1: 0.6, 2: 0.5, 3: 0.1})
    assert [len(within_factor(found, f)) for f in (0.5, 1.0, 1.25, 2.0)] == [1, 1, 2, 4]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9), st.floats(0.01, 3))
def test_factor_accepts_a_prefix_of_the_surest(confidence: list[float], factor: float) -> None:
    found = predictions(dict(enumerate(confidence)))
    accepted = within_factor(found, factor).tolist()
    assert accepted[0] == int(np.argmax(found.probability))
    assert accepted == np.argsort(-found.probability, kind="stable")[: len(accepted)].tolist()


@pytest.mark.parametrize(
    ("masks", "steps", "counts"),
    [(8, 4, (2, 2, 2, 2)), (8, 3, (3, 3, 2)), (4, 6, (1, 1, 1, 1, 0, 0)), (5, 1, (5,))],
)
def test_even_counts(masks: int, steps: int, counts: tuple[int, ...]) -> None:
    assert even_counts(masks, steps) == counts


def test_dream_counts() -> None:
    assert dream_counts(8, 3) == (2, 2, 4)
    assert dream_counts(4, 8) == (0, 0, 0, 0, 0, 1, 1, 2)
    assert dream_counts(7, 4, first=1) == (0, 2, 2, 3)  # a third of 7, half of 5, the rest


@given(st.integers(0, 200), st.integers(1, 64))
def test_schedules_fill_everything(masks: int, steps: int) -> None:
    for counts in (even_counts(masks, steps), dream_counts(masks, steps)):
        assert len(counts) == steps
        assert sum(counts) == masks
        assert min(counts) >= 0


def test_count_of_a_step() -> None:
    assert [count_at((3, 3, 2), step, 8) for step in range(4)] == [3, 3, 8, 8]
    assert count_at((3, 3, 2), 0, 2) == 2
