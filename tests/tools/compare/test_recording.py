"""Recorded steps run again must give what the decode got."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lopa.runtime.contract import Instance, LopaError, input_specs
from lopa.runtime.engines.onnxruntime.program import OnnxRuntimeProgram
from lopa.runtime.engines.onnxruntime.state import OnnxRuntimeState
from lopa.runtime.engines.protocol import StepOutputs
from lopa.runtime.engines.single import SingleState
from lopa.runtime.manifest import read_bundle
from lopa.runtime.session import Session
from lopa.tools.compare.engine_runner import EngineRunner
from lopa.tools.compare.feeds import Feed, shape_of
from lopa.tools.compare.recording import RecordingEngine, Spread, Step
from numpy.typing import NDArray

from .conftest import PROMPTS

Outputs = dict[str, NDArray[Any]]


@given(st.integers(1, 9), st.integers(0, 200))
def test_what_is_kept_is_spread_over_all(limit: int, count: int) -> None:
    spread = Spread(limit)
    for number in range(count):
        if spread.due:
            spread.add(Step({"number": np.array(number)}))
        else:
            spread.skip()
    kept = [int(step.feed["number"]) for step in spread.chosen]
    assert len(kept) <= limit
    assert len(kept) >= min(limit, count)
    assert kept == sorted(set(kept))
    if kept:
        assert kept[0] == 0
        gaps = np.diff([*kept, count])
        assert gaps.max() <= 4 * -(-count // limit)


class _Watched(OnnxRuntimeState):
    """Keeps copies of what every run gave."""

    seen: list[Outputs]

    def run(self, shape: Instance) -> StepOutputs:
        return self._watch(super().run(shape))

    def run_fast(self, shape: Instance) -> StepOutputs:
        return self._watch(super().run_fast(shape))

    def _watch(self, outputs: StepOutputs) -> StepOutputs:
        keys, values = self.window()
        found = {**vars(outputs), "window_keys": keys, "window_values": values}
        self.seen.append({name: array.copy() for name, array in found.items()})
        return outputs


@pytest.fixture(scope="module")
def decoded(tiny_bundle: Path) -> tuple[list[Feed], list[Outputs]]:
    """Feeds and outputs of all steps of three decodes, cache and lookahead included."""
    manifest = read_bundle(tiny_bundle)
    engine = _Watched(OnnxRuntimeProgram(tiny_bundle, manifest, threads=1))
    engine.seen = []
    spread = Spread(1000)
    session = Session(tiny_bundle, manifest, SingleState(RecordingEngine(engine, spread)))
    for prompt in PROMPTS:
        session.generate(prompt_ids=prompt, confidence=0.3, max_new_tokens=32)
    assert len(spread.chosen) == len(engine.seen) > 20
    return [step.feed for step in spread.chosen], engine.seen


def test_feeds_obey_the_contract(tiny_bundle: Path, decoded: tuple[list[Feed], Any]) -> None:
    manifest = read_bundle(tiny_bundle)
    info = manifest.model
    shapes = set()
    for feed in decoded[0]:
        specs = input_specs(shape_of(feed), info.layers, info.kv_heads, info.head_dim, "float32")
        assert {spec.name: (spec.dtype, spec.shape) for spec in specs} == {
            name: (str(array.dtype), array.shape) for name, array in feed.items()
        }
        assert not feed["cache_keys"][:, :, ~feed["cache_mask"]].any()
        shapes.add((shape_of(feed).branches, bool(feed["cache_mask"].any())))
    assert {(1, False), (5, True)} <= shapes


@pytest.mark.parametrize("resident", [False, True])
def test_recorded_steps_give_the_same_again(
    tiny_bundle: Path, decoded: tuple[list[Feed], list[Outputs]], resident: bool
) -> None:
    """Also where every step is padded to a static instance and the buffers are OrtValues."""
    manifest = read_bundle(tiny_bundle)
    runner = EngineRunner(
        lambda: OnnxRuntimeProgram(
            tiny_bundle, manifest, threads=1, resident=resident
        ).decode_state(),
        manifest,
        "again",
    )
    with runner:
        for feed, expected in list(zip(*decoded, strict=True))[:: 5 if resident else 1]:
            found = runner.infer(feed)
            assert found.keys() == expected.keys()
            for name, array in expected.items():
                assert found[name].shape == array.shape
                assert np.allclose(found[name], array, atol=1e-4), name


@pytest.mark.parametrize("policy", ["fast", "auto"])
def test_every_run_is_recorded_with_the_graph_that_made_it(
    two_precisions: Path, policy: str
) -> None:
    manifest = read_bundle(two_precisions)
    spread = Spread(1000)
    engine = RecordingEngine(
        OnnxRuntimeProgram(two_precisions, manifest, threads=1).decode_state(), spread
    )
    result = Session(two_precisions, manifest, SingleState(engine)).generate(
        prompt_ids=PROMPTS[0],
        confidence=0.3,
        max_new_tokens=32,
        precision_policy=policy,
        precision_margin=None if policy == "fast" else 0.02,
    )
    fast = [step.fast for step in spread.chosen]
    assert (len(fast), sum(fast)) == (result.steps, result.fast_steps)
    assert set(fast) == ({True} if policy == "fast" else {True, False})
    repeats = [
        (one, two)
        for one, two in itertools.pairwise(spread.chosen)
        if one.fast
        and not two.fast
        and one.feed["input_ids"].tolist() == two.feed["input_ids"].tolist()
    ]
    assert len(repeats) == result.repeats


def test_recorded_steps_run_again_by_their_graph(two_precisions: Path) -> None:
    manifest = read_bundle(two_precisions)
    engine = _Watched(OnnxRuntimeProgram(two_precisions, manifest, threads=1))
    engine.seen = []
    spread = Spread(1000)
    session = Session(two_precisions, manifest, SingleState(RecordingEngine(engine, spread)))
    session.generate(
        prompt_ids=PROMPTS[0], confidence=0.3, max_new_tokens=16, precision_policy="auto"
    )
    runner = EngineRunner(
        lambda: OnnxRuntimeProgram(two_precisions, manifest).decode_state(), manifest, "again"
    )
    differ = []
    with runner:
        for step, expected in zip(spread.chosen, engine.seen, strict=True):
            runner.fast = step.fast
            assert np.allclose(
                runner.infer(step.feed)["log_probs"], expected["log_probs"], atol=1e-4
            )
            runner.fast = not step.fast
            other = runner.infer(step.feed)["log_probs"]
            differ.append(np.abs(other - expected["log_probs"]).max())
    assert max(differ) > 0.01


def test_an_engine_whose_cache_cannot_be_filled(tiny_bundle: Path) -> None:
    runner = EngineRunner(cast(Any, object), read_bundle(tiny_bundle), "closed")
    with pytest.raises(LopaError, match="target onnxruntime; use --runner polygraphy"):
        runner.activate()
