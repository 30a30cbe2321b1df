"""The TensorRT runtime code over doubles of its two libraries."""

from __future__ import annotations

import gc
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lopa.runtime.contract import ContractError, Instance
from lopa.runtime.engines.onnxruntime.program import OnnxRuntimeProgram
from lopa.runtime.engines.protocol import StagingState, StepInputs
from lopa.runtime.engines.tensorrt.program import TensorRtProgram
from lopa.runtime.engines.tensorrt.state import TensorRtState
from lopa.runtime.engines.warm_up import warm_up
from lopa.runtime.manifest import read_bundle
from lopa.runtime.session import Session, open_bundle

from ...engine_steps import state_of
from .bundle import Doubles, install, write_bundle

# Prompts whose cache needs 64 slots, grows to 96, and needs 64 again.
PROMPTS = ([3, 1, 4, 1, 5], list(range(40)), [9, 2, 6])
SETTINGS: dict[str, Any] = {"lookahead": 3, "max_new_tokens": 56, "stop": "none"}


@pytest.fixture
def doubles(monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path) -> Doubles:
    return install(monkeypatch)  # after the export, which looks at what is imported


@pytest.fixture
def bundle(tmp_path: Path, tiny_bundle: Path) -> Path:
    write_bundle(tmp_path / "bundle", tiny_bundle)
    return tmp_path / "bundle"


def engine_of(session: Session) -> TensorRtState:
    state = state_of(session)
    assert isinstance(state, TensorRtState)
    return state


def decode(session: Session, prompt: list[int], **settings: Any) -> list[tuple[Any, ...]]:
    """Winner, tokens, committed positions and scores of every step."""
    return [
        (event.winner, event.tokens.tolist(), event.committed, event.scores)
        for event in session.stream(prompt_ids=prompt, **settings)
    ]


def assert_same(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    assert [step[:3] for step in found] == [step[:3] for step in expected]
    for one, other in zip(found, expected, strict=True):
        assert one[3] == pytest.approx(other[3], abs=1e-5)


@pytest.mark.parametrize("attention", ["full", "block-causal"])
def test_decoding_is_that_of_the_onnxruntime_engine(
    doubles: Doubles, bundle: Path, tiny_bundle: Path, attention: str
) -> None:
    expected, session = open_bundle(tiny_bundle, threads=1), open_bundle(bundle)
    settings = {**SETTINGS, "window_attention": attention}
    for prompt in PROMPTS:
        assert_same(decode(session, prompt, **settings), decode(expected, prompt, **settings))
    used = [graph for graph in state_of(session).status().graphs if graph.state != "unused"]
    assert {graph.instance.split("-")[2] for graph in used} == {"c64", "c96"}
    assert {graph.state for graph in used} == {"captured"}
    assert sum(graph.replays for graph in used) > 20
    assert doubles.library.enqueued == 2 * len(used)  # one warm-up and one capture each
    assert doubles.cuda.calls.count("cudaGraphLaunch") == sum(graph.replays for graph in used)


def test_window_and_cache_are_those_of_the_onnxruntime_engine(
    doubles: Doubles, bundle: Path, tiny_bundle: Path
) -> None:
    """Bit for bit at the same static shape, the two-phase commit of scattered rows included."""
    manifest = read_bundle(tiny_bundle)
    other = OnnxRuntimeProgram(tiny_bundle, manifest, threads=1, resident=True).decode_state()
    found = engine_of(open_bundle(bundle))
    rows, slots = np.array([24, 25, 26, 40, 39]), np.array([0, 1, 2, 9, 8])
    for context in (64, 96):
        shape = Instance(5, 24, context, 120)
        for engine in (found, other):
            inputs = engine.inputs(shape)
            inputs.input_ids[:] = np.arange(120).reshape(5, 24)
            inputs.position_ids[:] = np.arange(24)
            inputs.isolation_mask[:] = np.kron(np.eye(5), np.ones((24, 24)))
            inputs.cache_mask[:] = np.arange(context) < (0 if context == 64 else 3)
            inputs.head_rows[:] = np.arange(120)
            inputs.temperature[:] = 0.7
        one, two = found.run(shape), other.run(shape)
        np.testing.assert_array_equal(one.token_ids, two.token_ids)
        np.testing.assert_array_equal(one.log_probs, two.log_probs)
        for engine in (found, other):
            engine.commit(rows, slots)
        window, cache = found.window(), found.cache()
        for mine, its in zip((*window, *cache), (*other.window(), *other.cache()), strict=True):
            assert mine.shape == its.shape
        np.testing.assert_array_equal(window[0], other.window()[0])
        np.testing.assert_array_equal(cache[0][:, :, slots], other.cache()[0][:, :, slots])
        np.testing.assert_array_equal(cache[1][:, :, slots], other.cache()[1][:, :, slots])
        np.testing.assert_array_equal(cache[1][:, :, slots], window[1][:, :, rows])


def test_a_recorded_cache_is_loaded_to_run_its_step_again(doubles: Doubles, bundle: Path) -> None:
    engine = engine_of(open_bundle(bundle))
    shape = Instance(1, 24, 64, 24)
    engine.inputs(shape)
    random = np.random.default_rng(0)
    keys, values = (random.random((2, 2, 64, 16), np.float32) for _ in "kv")
    engine.load_cache(keys, values[::1, :, ::-1])
    found = engine.cache()
    np.testing.assert_array_equal(found[0], keys)
    np.testing.assert_array_equal(found[1], values[:, :, ::-1])
    for wrong in (keys[:, :, :32], keys.astype(np.float64)):
        with pytest.raises(ContractError, match=r"expected float32 \[2, 2, 64, 16\]"):
            engine.load_cache(wrong, values)
    np.testing.assert_array_equal(engine.cache()[0], keys)


def test_one_small_copy_goes_each_way_per_step(doubles: Doubles, bundle: Path) -> None:
    result = open_bundle(bundle).generate(prompt_ids=PROMPTS[0], **SETTINGS)
    assert len(doubles.cuda.uploaded) == len(doubles.cuda.downloaded) == result.steps
    # b5-w48: 240 x 240 mask, 96 slots, ids, positions, head rows; 240 x (16 pairs + entropy).
    assert max(doubles.cuda.uploaded) <= 240 * 240 + 96 + 3 * 4 * 240 + 6 * 256
    assert max(doubles.cuda.downloaded) <= 240 * (16 * 8 + 4) + 3 * 256
    assert result.steps > 10


def test_next_inputs_are_staged_between_launch_and_wait(
    doubles: Doubles, bundle: Path, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged: list[Hashable] = []
    hits: list[bool] = []
    stage, take = TensorRtState.stage, TensorRtState.staged

    def watch(self: TensorRtState, shape: Instance, layout: Hashable) -> StepInputs | None:
        calls = doubles.cuda.calls
        launch = len(calls) - 1 - calls[::-1].index("cudaGraphLaunch")
        assert "cudaStreamSynchronize" not in calls[launch:], "staged after the wait"
        assert any(stream.pending for stream in doubles.cuda.streams.values())
        staged.append(layout)
        return stage(self, shape, layout)

    def count(self: TensorRtState, shape: Instance, layout: Hashable) -> StepInputs | None:
        found = take(self, shape, layout)
        hits.append(found is not None)
        return found

    monkeypatch.setattr(TensorRtState, "stage", watch)
    monkeypatch.setattr(TensorRtState, "staged", count)
    session = open_bundle(bundle)
    assert isinstance(state_of(session), StagingState)
    expected = open_bundle(tiny_bundle, threads=1)
    assert not isinstance(state_of(expected), StagingState)
    # One more token must not make a lookahead branch longer than the others.
    settings = {**SETTINGS, "add_threshold": 0.5}
    assert_same(decode(session, PROMPTS[0], **settings), decode(expected, PROMPTS[0], **settings))
    assert staged
    assert sum(hits[1:]) >= 0.8 * len(hits[1:]), "nearly every move was foreseen"


def test_everything_is_freed_with_the_engine(doubles: Doubles, bundle: Path) -> None:
    session = open_bundle(bundle)
    session.generate(prompt_ids=PROMPTS[0], **SETTINGS)
    assert doubles.cuda.used()["executables"] > 0
    doubles.library.contexts.clear()
    del session
    gc.collect()
    assert not +doubles.cuda.used()


def test_warm_up_captures_every_instance(doubles: Doubles, bundle: Path) -> None:
    session = open_bundle(bundle)
    warm_up(state_of(session), session.program.instances)
    status = state_of(session).status()
    assert [graph.text for graph in status.graphs] == ["captured, 1 replays"] * 8
    assert status.library == "TensorRT 11.4.0.106"
    assert status.device == "Double GPU, SM 8.9"
    assert status.decode_memory["activations"] == 4096 * 240
    # 2 layers x 2 heads x 16 numbers x 4 bytes = 256 bytes a slot, keys and values; growing
    # needs one more of the smaller size.
    assert status.decode_memory["cache"] == 256 * (2 * 96 + 64)
    before = doubles.library.enqueued
    session.generate(prompt_ids=PROMPTS[0], **SETTINGS)
    assert doubles.library.enqueued == before


def test_only_the_profiles_of_the_manifest_are_opened(
    doubles: Doubles, tmp_path: Path, tiny_bundle: Path
) -> None:
    """Profile numbers come from the stamp, whatever instances the manifest keeps of them."""
    manifest = write_bundle(tmp_path / "bundle", tiny_bundle)
    kept = manifest.instances[1::3]
    engine = TensorRtProgram(tmp_path / "bundle", replace(manifest, instances=kept)).decode_state()
    warm_up(engine, kept)
    assert [context.profile for context in doubles.library.contexts] == [
        manifest.instances.index(instance) for instance in kept
    ]
