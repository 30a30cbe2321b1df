from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lopa.calibration.cache import (
    CachePlan,
    CacheRange,
    integers,
    plan_cache,
    read_cache_ranges,
)
from lopa.calibration.calibrate import calibrate
from lopa.calibration.integers import INT8_MAX
from lopa.calibration.recipe import CACHE, PRESETS, Recipe, Rule
from lopa.calibration.rewrite import rewrite
from lopa.calibration.session import open_session
from lopa.calibration.sites import StepGraph, find_sites
from lopa.calibration.states import StateFolder, States
from lopa.graphs.bundle import build_bundle
from lopa.graphs.instances import plan_instances
from lopa.graphs.lint import lint
from lopa.graphs.targets.fast import read_fast
from lopa.graphs.targets.integer_lint import placement_findings
from lopa.graphs.weight_file import inline_pieces
from lopa.runtime.contract import CACHE_WINDOWS, Instance, LopaError
from lopa.runtime.engines.onnxruntime.program import OnnxRuntimeProgram
from lopa.runtime.engines.onnxruntime.state import OnnxRuntimeState
from lopa.runtime.manifest import BundleManifest, read_model
from lopa.runtime.memory import bundle_memory
from lopa.runtime.options import DecodeOptions
from lopa.tools.display.report import cache_lines
from numpy.typing import NDArray

from ..exported import Exports
from .conftest import SETTINGS, Run, prompts, run
from .test_rewrite import plans_of

INSTANCES = plan_instances(4, [32], [64], [64])
# Random weights are chaotic: nothing is kept higher, whatever the cache changes.
ALONE = Recipe("alone", (Rule(CACHE, "int8"),), agreement=0.0, drift=1.0, tokens=0.0)


@pytest.fixture(scope="module")
def cached(tiny_model: Path, int8: Run) -> Run:
    """The tiny model with an INT8 cache and its own weights."""
    return run(tiny_model, int8.work.parent / "kv", ALONE)


@pytest.fixture(scope="module")
def plan(tiny_graph: StepGraph, int8: Run) -> CachePlan:
    states = StateFolder(int8.work / "states")
    names = tuple(states.names())
    return plan_cache(read_cache_ranges(tiny_graph, States(states, names), quiet), "auto")


def quiet(stage: str, done: int, total: int) -> None:
    """No progress."""


def rewritten(graph: StepGraph, plan: CachePlan) -> onnx.ModelProto:
    made = rewrite(graph, plans_of(find_sites(graph), "model"), cache=plan)
    inline_pieces(made.model, made.pieces)
    return made.model


@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3))
def test_rows_in_range_come_back_within_half_a_step(seed: int, size: float) -> None:
    generator = np.random.default_rng(seed)
    rows = (generator.normal(size=(2, 3, 5, 4)) * size).astype(np.float32)
    seen = CacheRange(np.abs(rows).max(2, keepdims=True), rows)
    scale = plan_cache({"cache_keys": seen}, "minmax").tensors["cache_keys"].scale
    assert scale.shape == (2, 3, 1, 4)
    back = integers(rows, scale) * scale
    assert (np.abs(back - rows) <= scale * 0.50001).all()


def test_integers_saturate_and_round_half_to_even() -> None:
    scale = np.full((1, 1, 1, 1), 0.5, np.float32)
    rows = np.array([0.25, 0.75, -0.25, 1e6, -1e6], np.float32).reshape(1, 1, 5, 1)
    assert integers(rows, scale).reshape(-1).tolist() == [0, 2, 0, INT8_MAX, -INT8_MAX - 1]


def test_percentile_is_taken_where_it_is_less_noisy() -> None:
    rows = np.random.default_rng(0).normal(size=(1, 1, 2000, 2)).astype(np.float32)
    largest = np.abs(rows).max(2, keepdims=True)
    within = plan_cache({"cache_keys": CacheRange(largest, rows)}, "auto").tensors["cache_keys"]
    beyond = plan_cache({"cache_keys": CacheRange(largest * 50, rows)}, "auto")
    assert within.method == "minmax"
    assert within.snr_db is not None
    assert within.snr_db > 30
    outliers = beyond.tensors["cache_keys"]
    assert outliers.method == "percentile"
    assert (outliers.scale < within.scale).all()


def test_a_channel_that_is_almost_zero_keeps_a_scale_that_half_precision_holds() -> None:
    rows = np.array([[1e-7, 1.0], [-1e-7, -1.0]], np.float32).reshape(1, 1, 2, 2)
    seen = CacheRange(np.abs(rows).max(2, keepdims=True), rows)
    scale = plan_cache({"cache_keys": seen}, "minmax").tensors["cache_keys"].scale
    assert scale.reshape(-1).tolist() == pytest.approx([1 / 127 / 64, 1 / 127])


def test_graph_equals_the_float_graph_on_a_rounded_cache(
    tiny_graph: StepGraph, int8: Run, plan: CachePlan
) -> None:
    model = rewritten(tiny_graph, plan)
    assert lint(model) == []
    assert placement_findings(model, tiny_graph.folder) == []
    own, exact = (
        open_session(model, tiny_graph.folder),
        open_session(tiny_graph.model, tiny_graph.folder),
    )
    states = StateFolder(int8.work / "states")
    cached = 0
    for name in states.names():
        feeds = states.load(name)
        whole = plan.feeds(feeds)
        cached += bool(feeds["cache_mask"].any())
        rounded = {key: whole[key] * plan.tensors[key].scale for key in CACHE_WINDOWS}
        found, expected = own.run(None, whole), exact.run(None, feeds | rounded)
        np.testing.assert_allclose(found[1], expected[1], atol=1e-4)
        for window, wanted, key in zip(found[3:], expected[3:], CACHE_WINDOWS, strict=True):
            assert window.dtype == np.int8
            units = wanted / plan.tensors[key].scale
            assert np.abs(window - np.clip(units, -128, 127)).max() < 0.501
    assert cached


def test_lint_names_caches_of_two_types(tiny_graph: StepGraph, plan: CachePlan) -> None:
    model = rewritten(tiny_graph, plan)
    (output,) = (item for item in model.graph.output if item.name == "window_values")
    output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    (found,) = lint(model)
    assert "cache_values int8, window_values float; caches and what fills them have one" in found


def test_half_precision_graph(exports: Exports, tiny_checkpoint: Path, plan: CachePlan) -> None:
    graph = StepGraph(exports.model("half", tiny_checkpoint, precision="fp16"), "step.onnx")
    model = rewritten(graph, plan)
    assert lint(model) == []
    assert model.opset_import[0].version == 19
    assert "cache_keys" in {item.name for item in open_session(model, graph.folder).get_inputs()}


class _Rounding(OnnxRuntimeState):
    """The float engine, whose committed rows are rounded by NumPy."""

    plan: CachePlan

    def commit(self, rows: NDArray[np.intp], slots: NDArray[np.intp]) -> None:
        windows = self.window()
        super().commit(rows, slots)
        found = list(self.cache())
        for cache, window, scales in zip(found, windows, self.plan.tensors.values(), strict=True):
            cache[:, :, slots] = integers(window[:, :, rows], scales.scale) * scales.scale


@pytest.mark.parametrize("options", [
    DecodeOptions(strategy="lopa", base="d2f", max_new_tokens=32),
    DecodeOptions(strategy="fast-dllm", cache="dual", max_new_tokens=32),
])  # fmt: skip
def test_decode_equals_the_float_model_with_a_rounded_cache(
    tiny_model: Path, cached: Run, tmp_path: Path, options: DecodeOptions
) -> None:
    plan = cached.result.cache
    assert plan is not None
    own = build_bundle(cached.out, tmp_path / "own", INSTANCES)
    plain = build_bundle(tiny_model, tmp_path / "plain", INSTANCES)
    assert own.model_dtype == "int8"
    assert bundle_memory(own).cache * 4 == bundle_memory(plain).cache
    assert cache_lines(own) == ["8.19 kB for 64 slots"]  # 2 x 2 layers x 2 heads x 16 numbers
    rounding = _Rounding(OnnxRuntimeProgram(tmp_path / "plain", plain))
    rounding.plan = plan
    for prompt in prompts(3):
        found = decode(
            OnnxRuntimeProgram(tmp_path / "own", own).decode_state(), own, options, prompt
        )
        assert found == decode(rounding, plain, options, prompt)


def decode(engine: Any, manifest: BundleManifest, options: DecodeOptions, prompt: list[int]) -> Any:
    decoder = options.resolved(len(prompt), manifest).decoder(engine, manifest.model)
    return [event.tokens.tolist() for event in decoder.steps(prompt)]


@pytest.mark.parametrize("resident", [False, True])
def test_commits_copy_the_integers(cached: Run, tmp_path: Path, resident: bool) -> None:
    manifest = build_bundle(cached.out, tmp_path / "own", INSTANCES)
    engine = OnnxRuntimeProgram(tmp_path / "own", manifest, resident=resident).decode_state()
    shape = engine.shape_for(Instance(1, 32, 64, 32))
    inputs = engine.inputs(shape)
    inputs.input_ids[:] = np.arange(inputs.input_ids.size).reshape(inputs.input_ids.shape)
    inputs.isolation_mask[:] = True
    inputs.temperature[:] = 1
    engine.run(shape)
    rows, slots = np.array([3, 4, 7]), np.array([0, 1, 9])
    windows = [window.copy() for window in engine.window()]
    engine.commit(rows, slots)
    for cache, window in zip(engine.cache(), windows, strict=True):
        assert cache.dtype == np.int8
        assert np.abs(window).max() > 20
        np.testing.assert_array_equal(cache[:, :, slots], window[:, :, rows])


def test_manifest_and_bytes_are_stated_and_deterministic(
    tiny_model: Path, cached: Run, tmp_path: Path
) -> None:
    quantization = cached.result.manifest.quantization
    assert quantization is not None
    assert (quantization.cache, quantization.rules) == ("int8", ("cache -> int8, auto",))
    assert set(quantization.counts) == {"model"}
    again = calibrate(tiny_model, tmp_path / "again", prompts(), ALONE, cached.work, SETTINGS)
    assert again.manifest.files == cached.result.manifest.files


def test_a_fast_model_with_another_cache_is_refused(tiny_model: Path, cached: Run) -> None:
    with pytest.raises(LopaError, match=r"is int8, that of .* float32, and a bundle has one cache"):
        read_fast(tiny_model, read_model(tiny_model), cached.out, "onnxruntime")


def test_an_integer_cache_is_not_calibrated_again(cached: Run) -> None:
    with pytest.raises(LopaError, match="is quantised already"):
        find_sites(StepGraph(cached.out, "step.onnx"))


def test_only_its_own_rule_reaches_the_cache() -> None:
    assert PRESETS["int8"].cache.precision == "model"
    assert PRESETS["int8-kv"].cache == Rule(CACHE, "int8")
    assert PRESETS["int8-kv"].lines()[0] == "cache -> int8, auto"
    for rule, fault in (
        (Rule(CACHE, "int4-weight"), "expected one of: model, int8"),
        (Rule(CACHE, "int8", "entropy"), "expected one of: minmax, percentile, auto"),
        (Rule(CACHE, "int8", smooth=0.5), "smooth is for products"),
    ):
        assert fault in rule.faults()[0]
