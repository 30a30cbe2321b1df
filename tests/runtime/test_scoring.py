from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lopa.runtime.scoring import (
    BranchScore,
    least_segment_mean,
    least_window_mean,
    mean_of_lowest,
)

from .predictions import branch_of, predictions

FOUR = {0: 0.9, 1: 0.1, 2: 0.5, 3: 0.3}


@pytest.mark.parametrize(
    ("fraction", "mean"), [(1.0, 0.45), (0.5, 0.2), (0.75, 0.3), (0.49, 0.1), (0.01, 0.1)]
)
def test_mean_of_lowest(fraction: float, mean: float) -> None:
    values = np.array(list(FOUR.values()), np.float32)
    assert mean_of_lowest(values, fraction) == pytest.approx(mean)
    assert values.tolist() == pytest.approx([0.9, 0.1, 0.5, 0.3])


def test_mean_of_lowest_of_nothing_is_one() -> None:
    assert mean_of_lowest(np.array([], np.float32), 0.5) == 1.0


@pytest.mark.parametrize(
    ("score", "value"),
    [
        (BranchScore(), 0.45),
        (BranchScore("mean_confidence", score_alpha=1.0, score_fraction=0.1), 0.45),
        (BranchScore("bottom_fraction", score_fraction=0.5), 0.2),
        (BranchScore("bottom_fraction", score_fraction=1.0), 0.45),
        (BranchScore("mixed", score_fraction=0.5), 0.5 * 0.8 + 0.5 * 0.2),
        (BranchScore("mixed", score_alpha=0.25, score_fraction=1.0), 0.25 * 0.8 + 0.75 * 0.45),
        (BranchScore("mixed", score_alpha=0.0, score_fraction=1.0), 0.45),
        (BranchScore("mixed", score_alpha=1.0), 0.8),
    ],
)
def test_scores_of_confidences(score: BranchScore, value: float) -> None:
    assert score(branch_of(0.8), predictions(FOUR), 320) == pytest.approx(value)


@pytest.mark.parametrize(("window", "mean"), [(1, 0.1), (2, 0.3), (3, 0.3), (4, 0.45), (9, 0.45)])
def test_sliding_minimum(window: int, mean: float) -> None:
    """Of 0.9, 0.1, 0.5, 0.3 by position; gaps between the positions do not matter."""
    values = np.array([0.9, 0.1, 0.5, 0.3], np.float32)
    assert least_window_mean(values, window) == pytest.approx(mean)
    found = predictions({2: 0.9, 7: 0.1, 8: 0.5, 20: 0.3})
    score = BranchScore("sliding_minimum", score_window=window)
    assert score(branch_of(), found, 320) == pytest.approx(mean)


def test_least_segment() -> None:
    """Runs 2-3, 7, 9-11 with means 0.5, 0.6 and 0.4."""
    found = predictions({2: 0.9, 3: 0.1, 7: 0.6, 9: 0.5, 10: 0.3, 11: 0.4})
    assert BranchScore("least_segment")(branch_of(), found, 320) == pytest.approx(0.4)
    assert least_segment_mean(found.positions[:3], found.confidence[:3]) == pytest.approx(0.5)
    one = predictions({0: 0.2, 1: 0.4})
    assert least_segment_mean(one.positions, one.confidence) == pytest.approx(0.3)


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=12), st.integers(1, 14))
def test_windows_and_segments_by_their_definition(values: list[float], window: int) -> None:
    found = np.array(values, np.float32)
    width = min(window, len(values))
    means = [found[i : i + width].mean() for i in range(len(values) - width + 1)]
    assert least_window_mean(found, window) == pytest.approx(min(means), abs=1e-6)
    positions = np.arange(len(values))
    assert least_segment_mean(positions, found) == pytest.approx(found.mean(), abs=1e-6)
    assert least_segment_mean(2 * positions, found) == pytest.approx(found.min(), abs=1e-6)


def test_reward_entropy() -> None:
    """0.7 * mean p(filled) + 0.3 * mean(1 - H / log V)."""
    entropy = [0.0, math.log(16), math.log(4), math.log(2)]  # of a vocabulary of 16
    found = predictions(FOUR, entropy=entropy)
    certainty = (1 + 0 + 0.5 + 0.75) / 4
    branch = branch_of(confidence=0.1, reward=0.6)
    score = BranchScore("reward_entropy")(branch, found, 16)
    assert score == pytest.approx(0.7 * 0.6 + 0.3 * certainty)
    weighted = BranchScore("reward_entropy", score_alpha=0.5)(branch, found, 16)
    assert weighted == pytest.approx(0.5 * 0.6 + 0.5 * certainty)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mean_confidence", 1.0),
        ("bottom_fraction", 1.0),
        ("mixed", 0.5 * 0.8 + 0.5),
        ("reward_entropy", 0.7 * 0.6 + 0.3),
        ("sliding_minimum", 1.0),
        ("least_segment", 1.0),
    ],
)
def test_a_branch_without_masks_has_a_certain_future(name: str, value: float) -> None:
    score = BranchScore(name)(branch_of(0.8, 0.6), predictions({}), 320)
    assert score == pytest.approx(value)
