"""The cache after commits: equal to a fresh prefill, to a dense recomputation, on every path."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lopa.runtime.contract import ContractError, Instance
from lopa.runtime.engines.onnxruntime.buffers import COMMIT_FILE, as_span
from lopa.runtime.engines.onnxruntime.state import OnnxRuntimeState

from ..export.tiny_checkpoint import MASK, TOKENIZER_SIZE
from .dense_model import DenseModel
from .engine_steps import by_branch, cache, open_engine, run_step

SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=4)


def _full(size: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    return np.ones((size, size), np.bool_)


def _block_causal(sizes: list[int]) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    ids = np.repeat(np.arange(len(sizes)), sizes)
    return np.asarray(ids[:, None] >= ids[None, :])


@settings(deadline=None, max_examples=15)
@given(SEEDS, SIZES, st.integers(1, 4), st.integers(0, 6))
def test_block_causal_commits_equal_one_fresh_prefill(
    engine: OnnxRuntimeState, seed: int, sizes: list[int], branches: int, later: int
) -> None:
    """Block after block is committed from a random winner beside masked later positions."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, TOKENIZER_SIZE, sum(sizes))
    engine.reset()
    start = 0
    for size in sizes:
        ids = np.full((branches, size + later), MASK)
        ids[:, size:] = rng.integers(0, TOKENIZER_SIZE, (branches, later))
        ids[:, :size] = tokens[start : start + size]
        visible = by_branch(*[_block_causal([size, later])] * branches)
        mask = np.ones(start, np.bool_) if start else None
        run_step(engine, ids, start + np.arange(size + later), visible, mask)
        winner = int(rng.integers(branches)) * (size + later)
        engine.commit(winner + np.arange(size), np.arange(start, start + size))
        start += size
    committed = cache(engine, start)
    engine.reset()
    fresh = run_step(engine, tokens[None], np.arange(start), _block_causal(sizes))
    assert np.abs(committed[0] - fresh.keys).max() < 1e-5
    assert np.abs(committed[1] - fresh.values).max() < 1e-5


@settings(deadline=None, max_examples=15)
@given(SEEDS, st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5)), min_size=1, max_size=5))
def test_full_attention_commits_equal_the_same_windows_densely(
    engine: OnnxRuntimeState, dense: DenseModel, seed: int, steps: list[tuple[int, int]]
) -> None:
    """Each step: (positions committed, positions left open after them), two branches."""
    rng = np.random.default_rng(seed)
    engine.reset()
    keys, values = dense.empty_cache()
    for size, later in steps:
        cached, width = keys.shape[2], size + later
        ids = rng.integers(0, TOKENIZER_SIZE, (2, width))
        positions = cached + np.arange(width)
        mask = np.ones(cached, np.bool_) if cached else None
        visible = by_branch(_full(width), _full(width))
        run_step(engine, ids, positions, visible, mask)
        winner = int(rng.integers(2))
        engine.commit(winner * width + np.arange(size), np.arange(cached, cached + size))
        whole = np.ones((width, cached + width), np.bool_)
        exact = dense(ids[winner], positions, whole, (keys, values))
        keys = np.concatenate([keys, exact.keys[:, :, :size]], 2)
        values = np.concatenate([values, exact.values[:, :, :size]], 2)
    held = cache(engine, keys.shape[2])
    assert np.abs(held[0] - keys).max(initial=0) < 1e-4
    assert np.abs(held[1] - values).max(initial=0) < 1e-4


@settings(deadline=None, max_examples=15)
@given(SEEDS, st.integers(1, 6), st.integers(1, 8), st.integers(2, 4))
def test_single_phase_commit_is_legal_under_block_causal_masks(
    engine: OnnxRuntimeState, seed: int, size: int, later: int, branches: int
) -> None:
    """The rows to cache do not depend on what each branch has in its later blocks."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, TOKENIZER_SIZE, (branches, size + later))
    ids[:, :size] = ids[0, :size]
    visible = by_branch(*[_block_causal([size, later])] * branches)
    step = run_step(engine, ids, np.arange(size + later), visible)
    for rows in (step.keys, step.values):
        split = rows.reshape(*rows.shape[:2], branches, size + later, -1)[:, :, :, :size]
        assert np.abs(split - split[:, :, :1]).max() < 1e-5


def test_single_phase_commit_is_illegal_under_full_attention(engine: OnnxRuntimeState) -> None:
    ids = np.array([[1, 2, 3, 4], [1, 2, 3, 5]])
    step = run_step(engine, ids, np.arange(4), by_branch(_full(4), _full(4)))
    assert np.array_equal(step.keys[0, :, :3], step.keys[0, :, 4:7])  # layer 0 sees no context
    assert np.abs(step.keys[1, :, :3] - step.keys[1, :, 4:7]).max() > 1e-2


@settings(deadline=None, max_examples=20)
@given(SEEDS, st.integers(1, 12))
def test_device_commit_graph_equals_the_host_commit(
    engine: OnnxRuntimeState, tiny_bundle: Path, seed: int, count: int
) -> None:
    """`commit.onnx` with its output bound to the cache itself."""
    rng = np.random.default_rng(seed)
    engine.reset()
    step = run_step(engine, rng.integers(0, TOKENIZER_SIZE, (2, 12)), np.arange(12), _full(24))
    slots_in_use = engine.cache()[0].shape[2]
    before = cache(engine, slots_in_use)
    rows = rng.permutation(24)[:count]
    slots = rng.permutation(slots_in_use)[:count]
    engine.commit(rows, slots)
    after = cache(engine, slots_in_use)
    session = onnxruntime.InferenceSession(
        tiny_bundle / COMMIT_FILE, providers=["CPUExecutionProvider"]
    )
    source = np.arange(slots_in_use)
    source[slots] = slots_in_use + rows
    for held, window, expected in zip(before, (step.keys, step.values), after, strict=True):
        buffer = onnxruntime.OrtValue.ortvalue_from_numpy(held)
        binding = session.io_binding()
        binding.bind_ortvalue_input("cache", buffer)
        binding.bind_cpu_input("window", window)
        binding.bind_cpu_input("source", source)
        binding.bind_ortvalue_output("committed", buffer)
        session.run_with_iobinding(binding)
        assert np.array_equal(buffer.numpy(), expected)


def test_uncommitted_slots_keep_their_contents(engine: OnnxRuntimeState) -> None:
    engine.reset()
    step = run_step(engine, np.arange(10)[None], np.arange(10), _full(10))
    engine.commit(np.arange(10), np.arange(10))
    changed = run_step(engine, np.arange(20, 30)[None], np.arange(10), _full(10))
    engine.commit(np.array([9, 2]), np.array([4, 5]))
    keys = cache(engine, 10)[0]
    kept = [0, 1, 2, 3, 6, 7, 8, 9]
    assert np.array_equal(keys[:, :, kept], step.keys[:, :, kept])
    assert np.array_equal(keys[:, :, [4, 5]], changed.keys[:, :, [9, 2]])


def test_the_cache_grows_without_losing_slots(tiny_bundle: Path) -> None:
    engine = open_engine(tiny_bundle)
    step = run_step(engine, np.arange(20)[None], np.arange(20), _full(20), np.zeros(1, np.bool_))
    engine.commit(np.arange(20), np.arange(20))
    assert engine.cache()[0].shape[2] == 64
    run_step(engine, np.arange(4)[None], np.arange(4), _full(4), np.zeros(70, np.bool_))
    assert engine.cache()[0].shape[2] == 96
    assert np.array_equal(cache(engine, 20)[0], step.keys)
    assert np.isfinite(cache(engine, 96)[0]).all()


def test_commit_needs_a_run(tiny_bundle: Path) -> None:
    engine = open_engine(tiny_bundle)
    with pytest.raises(ContractError, match="no step has run since the last reset"):
        engine.commit(np.array([0]), np.array([0]))
    run_step(engine, np.arange(4)[None], np.arange(4), _full(4))
    engine.reset()
    with pytest.raises(ContractError, match="no step has run since the last reset"):
        engine.commit(np.array([0]), np.array([0]))


def test_a_step_beyond_every_instance_is_refused(engine: OnnxRuntimeState) -> None:
    engine.reset()
    for step in (Instance(6, 8, 8, 8), Instance(1, 49, 8, 8), Instance(1, 8, 97, 8)):
        with pytest.raises(ContractError, match=f"no instance holds a step of {step.name}; the"):
            engine.shape_for(step)


@given(st.lists(st.integers(0, 12), unique=True, max_size=8))
def test_as_span_selects_the_same(indices: list[int]) -> None:
    chosen = np.array(indices, np.intp)
    data = np.arange(13)
    assert np.array_equal(data[as_span(chosen)], data[chosen])
    ascending = bool(indices) and all(b - a == 1 for a, b in itertools.pairwise(indices))
    assert isinstance(as_span(chosen), slice) == ascending
