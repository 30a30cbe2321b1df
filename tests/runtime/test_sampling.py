from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lopa.runtime.contract import LopaError
from lopa.runtime.engines.protocol import StepOutputs
from lopa.runtime.manifest import BundleManifest
from lopa.runtime.sampling import HeadRow, Predictions, Sampler, head_row

from .manifests import bundle_manifest

PROBABILITIES = np.array([[0.5, 0.25, 0.125, 0.0625], [0.4, 0.4, 0.1, 0.05]], np.float32)
OUTPUTS = StepOutputs(
    np.array([[7, 3, 9, 1], [4, 8, 2, 6]], np.int32),
    np.log(PROBABILITIES),
    np.array([1.5, 2.5], np.float32),
)
SAVED = HeadRow(
    np.array([5, 3, 9, 1], np.int32), np.log(np.array([0.75, 0.2, 0.03, 0.01], np.float32)), 0.5
)


def predict(
    sampler: Sampler, rows: tuple[int, ...] = (0, 1), saved: HeadRow | None = None, seed: int = 0
) -> Predictions:
    return sampler.predict(
        np.arange(20, 20 + len(rows)),
        OUTPUTS,
        np.array(rows, np.intp),
        saved,
        np.random.default_rng(seed),
    )


def test_greedy_takes_the_first_candidate() -> None:
    found = predict(Sampler())
    assert found.positions.tolist() == [20, 21]
    assert found.token_ids.tolist() == [7, 4]
    assert found.probability.tolist() == pytest.approx([0.5, 0.4])
    assert found.confidence.tolist() == pytest.approx([0.5, 0.4])
    assert found.entropy.tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("measure", "confidence"),
    [("probability", [0.5, 0.4]), ("margin", [0.25, 0.0]), ("entropy", [-1.5, -2.5])],
)
def test_measures(measure: str, confidence: list[float]) -> None:
    found = predict(Sampler(measure=measure))
    assert found.confidence.tolist() == pytest.approx(confidence)
    assert found.probability.tolist() == pytest.approx([0.5, 0.4])


def test_a_cut_changes_the_entropy() -> None:
    found = predict(Sampler(top_k=2, measure="entropy"))
    third = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    assert found.entropy.tolist() == pytest.approx([third, math.log(2)])
    assert found.confidence.tolist() == pytest.approx([-third, -math.log(2)])


def test_cuts_renormalise_the_candidates() -> None:
    assert predict(Sampler(top_k=2)).probability.tolist() == pytest.approx([2 / 3, 0.5])
    assert predict(Sampler(top_k=1)).probability.tolist() == pytest.approx([1, 1])
    # The smallest set that reaches p, so at least one candidate.
    assert predict(Sampler(top_p=0.5)).probability.tolist() == pytest.approx([1, 0.5])
    assert predict(Sampler(top_p=0.51)).probability.tolist() == pytest.approx([2 / 3, 0.5])
    assert predict(Sampler(top_p=1e-6)).probability.tolist() == pytest.approx([1, 1])
    both = predict(Sampler(top_k=3, top_p=0.7))
    assert both.probability.tolist() == pytest.approx([2 / 3, 0.5])
    margin = predict(Sampler(top_k=2, measure="margin"))
    assert margin.confidence.tolist() == pytest.approx([1 / 3, 0])


def test_the_saved_row_predicts_where_no_row_does() -> None:
    found = predict(Sampler(), (-1, 1), SAVED)
    assert found.token_ids.tolist() == [5, 4]
    assert found.probability.tolist() == pytest.approx([0.75, 0.4])
    assert found.entropy.tolist() == [0.5, 2.5]
    with pytest.raises(LopaError, match="no saved head row for position 20"):
        predict(Sampler(), (-1,))


def test_a_saved_row_outlives_the_run() -> None:
    outputs = StepOutputs(
        OUTPUTS.token_ids.copy(), OUTPUTS.log_probs.copy(), OUTPUTS.entropy.copy()
    )
    row = head_row(outputs, 1)
    for view in (outputs.token_ids, outputs.log_probs, outputs.entropy):
        view[:] = 0
    assert row.token_ids.tolist() == [4, 8, 2, 6]
    assert np.exp(row.log_probs).tolist() == pytest.approx(PROBABILITIES[1].tolist())
    assert row.entropy == 2.5


def test_nothing_masked_gives_nothing() -> None:
    for sampler in (Sampler(), Sampler(temperature=1.0, top_p=0.9)):
        found = predict(sampler, ())
        assert [len(part) for part in vars(found).values()] == [0] * 5


def test_sampling_follows_the_seed() -> None:
    sampler = Sampler(temperature=1.0)
    rows = (0, 1) * 50
    first = predict(sampler, rows, seed=3)
    assert np.array_equal(first.token_ids, predict(sampler, rows, seed=3).token_ids)
    assert not np.array_equal(first.token_ids, predict(sampler, rows, seed=4).token_ids)


def test_sampling_frequencies_follow_the_probabilities() -> None:
    tokens = predict(Sampler(temperature=1.0), (0,) * 20000).token_ids
    total = PROBABILITIES[0].sum()  # tokens beyond the candidates cannot be drawn
    for token, share in zip((7, 3, 9, 1), PROBABILITIES[0] / total, strict=True):
        assert (tokens == token).mean() == pytest.approx(share, abs=0.015)


def test_cut_tokens_are_never_drawn() -> None:
    assert set(predict(Sampler(1.0, top_k=2), (0,) * 500).token_ids) == {7, 3}
    assert set(predict(Sampler(1.0, top_p=0.4), (0,) * 500).token_ids) == {7}


@settings(deadline=None, max_examples=50)
@given(
    st.integers(0, 99),
    st.sampled_from([0.0, 0.7]),
    st.none() | st.integers(1, 4),
    st.none() | st.floats(0.01, 1),
)
def test_the_chosen_token_has_its_own_probability(
    seed: int, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    found = predict(Sampler(temperature, top_k, top_p), (0, 1, 0, 1), seed=seed)
    assert (found.probability > 0).all()
    assert (found.probability <= 1 + 1e-6).all()
    for index, row in enumerate((0, 1, 0, 1)):
        column = OUTPUTS.token_ids[row].tolist().index(found.token_ids[index])
        assert found.probability[index] >= PROBABILITIES[row, column] - 1e-6
        assert temperature or column == 0


def test_engine_temperature() -> None:
    assert Sampler().engine_temperature == 1.0
    assert Sampler(temperature=0.3).engine_temperature == 0.3


def test_settings_that_the_candidates_do_not_serve() -> None:
    four, one = bundle_of(4), bundle_of(1)
    assert Sampler(0.5, 4, 1.0, "margin").faults(four) == []
    assert Sampler(top_k=5).faults(four) == [
        "top k is 5, the bundle keeps 4 candidates per position (export with --candidates)"
    ]
    assert Sampler(measure="margin").faults(one) == [
        "measure 'margin' needs a bundle that keeps at least 2 candidates"
    ]


def bundle_of(candidates: int) -> BundleManifest:
    manifest = bundle_manifest()
    return replace(manifest, model=replace(manifest.model, candidates=candidates))
