from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lopa.calibration.thresholds import (
    BINS,
    LEVELS,
    Histogram,
    entropy,
    minmax,
    percentile,
)
from numpy.typing import NDArray


def seen(values: NDArray[np.float32]) -> Histogram:
    histogram = Histogram.empty()
    histogram.add(np.abs(values))
    return histogram


def test_counts_of_known_values() -> None:
    histogram = seen(np.array([0.0, 0.5, 1.5, 2047.5], np.float32))
    assert histogram.width == 1.0
    assert np.flatnonzero(histogram.counts).tolist() == [0, 1, 2047]
    assert histogram.counts[0] == 2


def test_wider_values_double_the_bins() -> None:
    histogram = seen(np.array([3.5, 2047.0], np.float32))
    histogram.add(np.array([4095.0], np.float32))
    assert histogram.width == 2.0
    assert np.flatnonzero(histogram.counts).tolist() == [1, 1023, 2047]
    edge = seen(np.array([2048.0], np.float32))
    assert (edge.width, int(edge.counts[1024])) == (2.0, 1)


@given(
    st.lists(
        st.lists(st.floats(0, 1e6, width=32), min_size=1, max_size=20), min_size=1, max_size=5
    ),
    st.randoms(),
)
def test_order_does_not_matter(parts: list[list[float]], random: object) -> None:
    forward, backward = Histogram.empty(), Histogram.empty()
    for part in parts:
        forward.add(np.array(part, np.float32))
    for part in reversed(parts):
        backward.add(np.array(part, np.float32))
    assert forward.width == backward.width
    assert np.array_equal(forward.counts, backward.counts)
    assert forward.counts.sum() == sum(len(part) for part in parts)


def test_percentile_of_a_uniform_distribution() -> None:
    histogram = Histogram(0.5, np.ones(BINS, np.int64))
    assert percentile(histogram, 1024.0, 50) == 512.0
    assert percentile(histogram, 1024.0, 100) == 1024.0
    assert percentile(histogram, 1000.0, 100) == 1000.0  # never above what was seen
    assert percentile(Histogram.empty(), 3.0) == 3.0


def test_percentile_leaves_outliers_out() -> None:
    values = np.concatenate([np.linspace(0, 1, 99_999), [1000.0]]).astype(np.float32)
    assert percentile(seen(values), 1000.0) <= 1.0
    assert minmax(seen(values), 1000.0) == 1000.0


def test_entropy_keeps_all_of_a_uniform_distribution() -> None:
    assert entropy(Histogram(1.0, np.full(BINS, 100, np.int64)), 2048.0) == 2048.0


def test_entropy_clips_a_long_tail() -> None:
    values = np.abs(np.random.default_rng(0).standard_normal(100_000)).astype(np.float32)
    histogram = seen(np.append(values, np.float32(200)))
    assert 2 < entropy(histogram, 200.0) < 40


def test_entropy_of_few_bins_is_the_largest_value() -> None:
    counts = np.zeros(BINS, np.int64)
    counts[:LEVELS] = 5
    assert entropy(Histogram(1.0, counts), 127.5) == 127.5
    assert entropy(Histogram.empty(), 0.0) == 0.0


@pytest.mark.parametrize("threshold", [minmax, percentile, entropy])
def test_a_normal_distribution_is_clipped_between_two_and_six_deviations(threshold: object) -> None:
    values = np.random.default_rng(0).standard_normal(200_000).astype(np.float32)
    chosen = threshold(seen(values), float(np.abs(values).max()))  # type: ignore[operator]
    assert 2 < chosen < 6
