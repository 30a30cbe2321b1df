from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from lopa.graphs.targets.integer_lint import kernel_findings, placement_findings
from lopa.graphs.targets.onnxruntime.integers import use_integer_kernels
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

ROWS = ["quantize", "dequantize"]


def product(
    *,
    scale: NDArray[np.float32] | None = None,
    zero: NDArray[np.int8] | None = None,
    columns: int = 8,
    between: NodeProto | None = None,
    float_rows: bool = False,
    float_weight: bool = False,
    bias: bool = True,
) -> onnx.ModelProto:
    """A product of rows [n, 16] with stored integers [16, 8], placed as the options say."""
    generator = np.random.default_rng(0)
    stored: dict[str, NDArray[Any]] = {
        "a.weight": generator.integers(-127, 128, (16, 8)).astype(np.int8),
        "a.weight_scale": np.full(columns, 0.01, np.float32),
        "rows.scale": np.array(0.05, np.float32) if scale is None else scale,
        "zero": np.array(0, np.int8) if zero is None else zero,
        "bias": generator.standard_normal(8).astype(np.float32),
        "floats": generator.standard_normal((16, 8)).astype(np.float32),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "rows.scale", "zero"], ["x8"], ROWS[0]),
        helper.make_node("DequantizeLinear", ["x8", "rows.scale", "zero"], ["xr"], ROWS[1]),
        *([between] if between is not None else []),
        helper.make_node(
            "DequantizeLinear", ["a.weight", "a.weight_scale"], ["w"], "unpack", axis=1
        ),
        helper.make_node(
            "MatMul",
            [
                "x" if float_rows else "xr" if between is None else between.output[0],
                "floats" if float_weight else "w",
            ],
            ["p"],
            "product",
        ),
        helper.make_node("Add", ["p", "bias"], ["y"])
        if bias
        else helper.make_node("Neg", ["p"], ["y"]),
    ]
    read = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        [node for node in nodes if any(name in read or name == "y" for name in node.output)],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(value, name) for name, value in stored.items() if name in read],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_the_right_placement_has_no_findings(tmp_path: Path) -> None:
    assert placement_findings(product(), tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"zero": np.array(3, np.int8)}, "quantize: its zero point is not 0"),
        ({"scale": np.full(16, 0.1, np.float32)}, "quantize: [16] scales for an activation"),
        (
            {"between": helper.make_node("Relu", ["xr"], ["xs"], "relu")},
            "dequantize: read by Relu relu, not by a product",
        ),
        ({"float_weight": True}, "product: its weight is not quantised"),
        ({"columns": 16}, "unpack: not one scale per output column of product"),
    ],
)
def test_misplaced_pairs_are_found(
    tmp_path: Path, changes: dict[str, object], finding: str
) -> None:
    found = placement_findings(product(**changes), tmp_path)  # type: ignore[arg-type]
    assert any(finding in item for item in found), found


def test_swapped_inputs_and_foreign_readers_are_found(tmp_path: Path) -> None:
    model = product()
    model.graph.node[1].input[1] = "a.weight_scale"
    found = placement_findings(model, tmp_path)
    assert "dequantize: its scale is not that of quantize" in found
    model = product()
    model.graph.node.append(helper.make_node("Cast", ["x8"], ["z"], "other", to=TensorProto.FLOAT))
    assert placement_findings(model, tmp_path) == [
        "quantize: read by Cast other, not DequantizeLinear"
    ]


@pytest.mark.parametrize("bias", [True, False])
def test_integer_product_runs_as_one(tmp_path: Path, bias: bool) -> None:
    model = product(bias=bias)
    use_integer_kernels(model)
    assert kernel_findings(model, tmp_path, {"a": "int8"}) == []


def test_product_that_runs_in_floats_is_reported(tmp_path: Path) -> None:
    """The library alone keeps a product with a bias in floats: the target's rewriting is needed."""
    assert kernel_findings(product(), tmp_path, {"a": "int8"}) == [
        "a: int8, but runs as a float product"
    ]
    model = product(float_rows=True)
    use_integer_kernels(model)
    assert kernel_findings(model, tmp_path, {"a": "int8"}) == ["a: int8, but runs as MatMulNBits"]
    assert kernel_findings(model, tmp_path, {"a": "int8-weight"}) == []
