"""Properties of one engine step: isolation, padding and masks with holes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lopa.runtime.contract import Instance
from lopa.runtime.engines.onnxruntime.state import OnnxRuntimeState
from numpy.typing import NDArray

from ..export.tiny_checkpoint import MASK, TOKENIZER_SIZE
from .dense_model import DenseModel
from .engine_steps import by_branch, gap, is_finite, run_step, same_candidates

WINDOWS = 8  # few distinct shapes keep the engine's bound buffers few
SEEDS = st.integers(0, 2**32 - 1)


def _tokens(rng: np.random.Generator, *shape: int) -> NDArray[Any]:
    return np.where(rng.random(shape) < 0.3, MASK, rng.integers(0, TOKENIZER_SIZE, shape))


def _mask(rng: np.random.Generator, size: int) -> NDArray[np.bool_]:
    """Arbitrary visibility, but every row sees itself."""
    return (rng.random((size, size)) < 0.5) | np.eye(size, dtype=np.bool_)


def _fill_cache(engine: OnnxRuntimeState, rng: np.random.Generator, slots: int) -> None:
    """Commit `slots` rows of random tokens."""
    engine.reset()
    if slots:
        ids = _tokens(rng, 1, slots)
        run_step(engine, ids, np.arange(slots), np.ones((slots, slots), np.bool_))
        engine.commit(np.arange(slots), np.arange(slots))


@settings(deadline=None, max_examples=20)
@given(SEEDS, st.integers(2, 5), st.integers(0, 5))
def test_branches_are_isolated(
    engine: OnnxRuntimeState, seed: int, branches: int, other: int
) -> None:
    rng = np.random.default_rng(seed)
    _fill_cache(engine, rng, 6)
    changed = other % branches
    ids, positions = _tokens(rng, branches, WINDOWS), 6 + np.arange(WINDOWS)
    visible = by_branch(*(_mask(rng, WINDOWS) for _ in range(branches)))
    cache_mask = rng.random(6) < 0.7
    before = run_step(engine, ids, positions, visible, cache_mask)
    ids[changed] = _tokens(rng, WINDOWS)
    ids[changed, 0] = (ids[changed, 0] + 1) % TOKENIZER_SIZE
    after = run_step(engine, ids, positions, visible, cache_mask)
    rows = np.arange(branches * WINDOWS).reshape(branches, WINDOWS)
    kept = np.delete(rows, changed, 0).reshape(-1)
    assert same_candidates(before, after, kept)
    assert np.abs(before.log_probs[kept] - after.log_probs[kept]).max() < 1e-6
    assert np.abs(before.entropy[kept] - after.entropy[kept]).max() < 1e-6
    for one, two in ((before.keys, after.keys), (before.values, after.values)):
        assert np.abs(one[:, :, kept] - two[:, :, kept]).max() < 1e-6
        assert np.abs(one[:, :, rows[changed]] - two[:, :, rows[changed]]).max() > 1e-3


@settings(deadline=None, max_examples=20)
@given(SEEDS, st.integers(1, 3), st.sampled_from([0, 5, 8]), st.integers(1, 8))
def test_padding_changes_no_row(
    engine: OnnxRuntimeState, seed: int, branches: int, cached: int, rows: int
) -> None:
    """Padded branches, window, context and head rows: as alone, and finite throughout."""
    rng = np.random.default_rng(seed)
    _fill_cache(engine, rng, cached)
    ids, positions = _tokens(rng, branches, WINDOWS), cached + np.arange(WINDOWS)
    visible = by_branch(*(_mask(rng, WINDOWS) for _ in range(branches)))
    cache_mask = np.ones(cached, np.bool_) if cached else None
    head_rows = rng.integers(0, branches * WINDOWS, rows)
    alone = run_step(engine, ids, positions, visible, cache_mask, head_rows)
    padded_shape = Instance(5, 24, 96, 5 * 24)
    padded = run_step(engine, ids, positions, visible, cache_mask, head_rows, padded_shape)
    assert gap(alone, padded) < 1e-5
    outputs = engine.run(padded_shape)
    for values in (outputs.log_probs, outputs.entropy, *engine.window()):
        assert np.isfinite(values).all()


def test_a_step_of_padding_only_is_finite(engine: OnnxRuntimeState) -> None:
    ids = np.full((4, 3), MASK)
    step = run_step(engine, ids, np.zeros(3), np.eye(12, dtype=np.bool_), np.zeros(9, np.bool_))
    assert is_finite(step)


@settings(deadline=None, max_examples=25)
@given(SEEDS, st.integers(1, 3), st.sampled_from([0, 7, 12]), st.sampled_from([1.0, 0.5, 2.0]))
def test_masks_with_holes_match_dense_attention(
    engine: OnnxRuntimeState,
    dense: DenseModel,
    seed: int,
    branches: int,
    cached: int,
    temperature: float,
) -> None:
    """Any cache mask and any isolation mask, also across branches, at any positions."""
    rng = np.random.default_rng(seed)
    rows = branches * WINDOWS
    keys, values = dense.empty_cache(cached)
    engine.reset()
    if cached:
        ids, everything = _tokens(rng, 1, cached), np.ones((cached, cached), np.bool_)
        run_step(engine, ids, np.arange(cached), everything)
        engine.commit(np.arange(cached), np.arange(cached))
        prefill = dense(ids[0], np.arange(cached), everything)
        keys, values = prefill.keys, prefill.values
    ids = _tokens(rng, branches, WINDOWS)
    positions = rng.integers(0, 90, (branches, WINDOWS))
    visible, cache_mask = _mask(rng, rows), rng.random(cached) < 0.5
    step = run_step(
        engine, ids, positions, visible, cache_mask if cached else None, temperature=temperature
    )
    whole = np.concatenate([np.broadcast_to(cache_mask, (rows, cached)), visible], 1)
    exact = dense(ids.reshape(-1), positions.reshape(-1), whole, (keys, values))
    assert np.abs(step.keys - exact.keys).max() < 1e-4
    assert np.abs(step.values - exact.values).max() < 1e-4
    logits = exact.logits / temperature
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    picked = np.take_along_axis(log_probs, step.token_ids.astype(np.intp), 1)
    assert np.abs(step.log_probs - picked).max() < 2e-4
    assert np.abs(step.entropy + (np.exp(log_probs) * log_probs).sum(1)).max() < 2e-4
    allowed = np.delete(log_probs[:, :TOKENIZER_SIZE], MASK, 1)
    assert picked[:, 0] == pytest.approx(allowed.max(1), abs=1e-5)


@settings(deadline=None, max_examples=10)
@given(SEEDS)
def test_candidates_are_sorted_and_may_be_predicted(engine: OnnxRuntimeState, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ids = _tokens(rng, 2, WINDOWS)
    visible = by_branch(*(_mask(rng, WINDOWS) for _ in range(2)))
    step = run_step(engine, ids, np.arange(WINDOWS), visible)
    assert (np.diff(step.log_probs, axis=1) <= 0).all()
    assert step.token_ids.min() >= 0
    assert step.token_ids.max() < TOKENIZER_SIZE
    assert not (step.token_ids == MASK).any()
    assert all(len(set(row)) == 16 for row in step.token_ids.tolist())
