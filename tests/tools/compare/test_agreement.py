from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lopa.calibration.fidelity import same_tokens
from lopa.tools.compare.agreement import AgreementCount
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def outputs(probabilities: Floats, kept: int) -> dict[str, NDArray[np.generic]]:
    """What an engine gives that keeps the best `kept` of each row."""
    ids = np.argsort(-probabilities, axis=1, kind="stable")[:, :kept]
    return {"token_ids": ids, "log_probs": np.log(np.take_along_axis(probabilities, ids, 1))}


@st.composite
def distributions(draw: st.DrawFn) -> tuple[Floats, Floats]:
    logits = st.lists(st.lists(st.floats(-4, 4), min_size=6, max_size=6), min_size=2, max_size=2)
    one, two = (np.exp(np.array(draw(logits))) for _ in range(2))
    return one / one.sum(1, keepdims=True), two / two.sum(1, keepdims=True)


@given(distributions(), st.integers(1, 6))
def test_kl_is_a_lower_bound_and_exact_with_all_candidates(
    pair: tuple[Floats, Floats], kept: int
) -> None:
    one, two = pair
    exact = (one * np.log(one / two)).sum(1)
    count = AgreementCount()
    count.add(outputs(one, kept), outputs(two, kept), np.arange(2))
    found = count.total()
    assert 0 <= found.kl_mean <= exact.mean() + 1e-9
    if kept == 6:
        assert found.kl_max == pytest.approx(exact.max(), abs=1e-9)
        assert found.candidates == 1
    assert found.positions == 2
    assert found.top1 == (one.argmax(1) == two.argmax(1)).mean()
    drift = two.max(1) - one.max(1)
    assert found.drift_signed == pytest.approx(drift.mean())
    assert found.drift_mean == pytest.approx(np.abs(drift).mean())
    assert found.drift_max == pytest.approx(np.abs(drift).max())


def test_only_the_rows_asked_for_count() -> None:
    one = np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])
    two = np.array([[0.6, 0.3, 0.1], [0.7, 0.2, 0.1]])
    count = AgreementCount()
    count.add(outputs(one, 2), outputs(two, 2), np.array([0]))
    assert count.total().top1 == 1
    assert count.total().drift_signed == pytest.approx(-0.1)
    count.add(outputs(one, 2), outputs(two, 2), np.array([1]))
    assert (count.total().top1, count.total().positions) == (0.5, 2)
    assert count.total().candidates == 0.75  # (0, 1) and (0, 1); (2, 1) and (0, 1)


def test_without_masked_positions_nothing_disagrees() -> None:
    assert AgreementCount().total().top1 == 1
    assert AgreementCount().total().positions == 0


def test_token_agreement_counts_what_one_side_lacks() -> None:
    assert same_tokens([([1, 2, 3, 4], [1, 2, 9, 4])])[0] == 0.75
    assert same_tokens([([1, 2], [1, 2, 3, 4]), ([7], [7])])[0] == 0.6
    assert same_tokens([])[0] == 1
