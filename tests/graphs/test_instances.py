from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from lopa.graphs.instances import fix_dimensions, plan_instances
from lopa.graphs.lint import FORBIDDEN
from lopa.runtime.contract import Instance, LopaError, input_specs, output_specs
from lopa.runtime.manifest import read_model

INSTANCES = [Instance(1, 6, 8, 6), Instance(3, 4, 16, 5)]


def test_every_combination_cheapest_first() -> None:
    found = plan_instances(4, [16, 8], [64, 8], [128, 32])
    assert [item.name for item in found] == [
        "b1-w8-c32-r8",
        "b1-w8-c128-r8",
        "b1-w16-c32-r16",
        "b1-w16-c128-r16",
        "b5-w8-c32-r40",
        "b5-w8-c128-r40",
        "b1-w64-c32-r64",
        "b1-w64-c128-r64",
        "b5-w16-c32-r80",
        "b5-w16-c128-r80",
    ]


def test_no_lookahead_and_repeated_sizes_give_no_duplicates() -> None:
    assert plan_instances(0, [8, 8], [8], [16, 16]) == (Instance(1, 8, 16, 8),)


def test_every_fault_of_a_plan() -> None:
    with pytest.raises(LopaError) as caught:
        plan_instances(-1, [0], [-2], [])
    assert str(caught.value) == (
        "lookahead is -1, expected 0 or more; window 0 is not positive; prefill -2 is not "
        "positive; no context given"
    )
    with pytest.raises(LopaError, match="no window given"):
        plan_instances(1, [], [8], [8])


def _shapes(values: Any) -> list[list[int | str]]:
    return [
        [dim.dim_param or dim.dim_value for dim in v.type.tensor_type.shape.dim] for v in values
    ]


def test_symbolic_dimensions(tiny_model: Path) -> None:
    graph = onnx.load(tiny_model / "step.onnx", load_external_data=False).graph
    rows = "branches*window"
    assert _shapes(graph.input) == [
        ["branches", "window"],
        ["branches", "window"],
        [rows, rows],
        ["context"],
        [2, 2, "context", 16],
        [2, 2, "context", 16],
        ["rows"],
        [1],
    ]
    assert _shapes(graph.output) == [
        ["rows", 16],
        ["rows", 16],
        ["rows"],
        [2, 2, rows, 16],
        [2, 2, rows, 16],
    ]


@pytest.mark.parametrize("instance", INSTANCES, ids=lambda item: item.name)
def test_static_instances(tiny_model: Path, tmp_path: Path, instance: Instance) -> None:
    """No symbolic dimension, nothing uncapturable, and the numbers of the symbolic graph."""
    info = read_model(tiny_model).model
    symbolic = onnx.load(tiny_model / "step.onnx", load_external_data=False)
    before = symbolic.SerializeToString()
    fixed = fix_dimensions(symbolic, instance)
    assert symbolic.SerializeToString() == before
    dims = (info.layers, info.kv_heads, info.head_dim)
    inputs = input_specs(instance, *dims, "float32")
    outputs = output_specs(instance, *dims, info.candidates, "float32")
    assert _shapes(fixed.graph.input) == [list(spec.shape) for spec in inputs]
    assert _shapes(fixed.graph.output) == [list(spec.shape) for spec in outputs]
    assert not {node.op_type for node in fixed.graph.node} & FORBIDDEN
    shutil.copyfile(tiny_model / "weights.data", tmp_path / "weights.data")
    onnx.save(onnx.shape_inference.infer_shapes(fixed, strict_mode=True), tmp_path / "static.onnx")
    onnx.checker.check_model(tmp_path / "static.onnx")
    feeds = _feeds(instance, dims)
    results = [
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feeds)
        for path in (tiny_model / "step.onnx", tmp_path / "static.onnx")
    ]
    for symbolic_output, static_output, spec in zip(*results, outputs, strict=True):
        assert static_output.shape == spec.shape
        assert static_output.dtype == spec.dtype
        assert np.abs(symbolic_output - static_output).max() < 1e-5


def _feeds(instance: Instance, dims: tuple[int, int, int]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {spec.name: spec for spec in input_specs(instance, *dims, "float32")}
    rows = instance.window_rows
    values = {
        "input_ids": rng.integers(0, 290, shapes["input_ids"].shape),
        "position_ids": rng.integers(0, 50, shapes["position_ids"].shape),
        "isolation_mask": (rng.random((rows, rows)) < 0.5) | np.eye(rows, dtype=np.bool_),
        "cache_mask": rng.random(instance.context) < 0.5,
        "cache_keys": rng.standard_normal(shapes["cache_keys"].shape),
        "cache_values": rng.standard_normal(shapes["cache_values"].shape),
        "head_rows": rng.permutation(rows)[: instance.rows],
        "temperature": np.ones(1),
    }
    return {name: value.astype(shapes[name].dtype) for name, value in values.items()}
