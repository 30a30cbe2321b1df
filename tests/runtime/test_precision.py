from __future__ import annotations

import numpy as np
import pytest
from lopa.runtime.branches import Window
from lopa.runtime.precision import PrecisionPolicy
from lopa.runtime.sampling import Predictions

EXPLORING, WRITING = Window(4, 4, block_causal=False), Window(4, 8, block_causal=False)


def predictions(*probability: float) -> Predictions:
    count = len(probability)
    values = np.array(probability, np.float32)
    ids, positions = np.zeros(count, np.int32), np.arange(count)
    return Predictions(positions, ids, values, values, np.zeros(count, np.float32))


@pytest.mark.parametrize(
    ("name", "exploring", "writing"),
    [("full", False, False), ("fast", True, True), ("auto", True, False)],
)
def test_only_auto_tells_exploring_from_writing(name: str, exploring: bool, writing: bool) -> None:
    policy = PrecisionPolicy(name)
    assert policy.explores(EXPLORING) is exploring
    assert policy.explores(WRITING) is writing


@pytest.mark.parametrize(
    ("scores", "probability", "expected"),
    [
        ([0.5, 0.8], [0.5, 0.99], False),
        ([0.76, 0.8], [0.5, 0.99], True),  # another branch is near
        ([0.5, 0.8], [0.5, 0.93], True),  # near the threshold, above
        ([0.5, 0.8], [0.87, 0.99], True),  # and below
        ([0.8], [0.5], False),  # no rival
        ([0.8], [], False),  # nothing to fill
    ],
)
def test_auto_doubts_what_rounding_could_turn(
    scores: list[float], probability: list[float], expected: bool
) -> None:
    policy = PrecisionPolicy("auto", precision_margin=0.05, threshold=0.9)
    winner = int(np.argmax(scores))
    assert policy.doubts(scores, winner, predictions(*probability)) is expected
    for fixed in ("full", "fast"):
        other = PrecisionPolicy(fixed, precision_margin=0.05, threshold=0.9)
        assert not other.doubts(scores, winner, predictions(*probability))


def test_without_a_threshold_only_the_branches_count() -> None:
    policy = PrecisionPolicy("auto", precision_margin=0.05)
    assert not policy.doubts([0.2, 0.8], 1, predictions(0.9))
    assert policy.doubts([0.79, 0.8], 1, predictions(0.9))
