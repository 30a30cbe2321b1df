from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from lopa.graphs.targets.tensorrt.check import target_faults
from onnx import TensorProto, helper, numpy_helper

FLOAT, HALF, INT8, UINT8, BOOL = (
    TensorProto.FLOAT,
    TensorProto.FLOAT16,
    TensorProto.INT8,
    TensorProto.UINT8,
    TensorProto.BOOL,
)


def graph_of(
    nodes: list[onnx.NodeProto],
    kind: int = FLOAT,
    shape: tuple[int, ...] = (4, 8),
    constants: dict[str, Any] | None = None,
    opset: int = 18,
) -> onnx.ModelProto:
    """A graph of input `x` and output `y`."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)],
        [numpy_helper.from_array(np.array(v), name) for name, v in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def node(kind: str, *inputs: str, out: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, list(inputs), [out], name=f"the_{kind}", **attributes)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_exported_models_pass(
    exports: Any, tiny_checkpoint: Path, tiny_model: Path, precision: str
) -> None:
    names = {"fp16": "tiny-half", "bf16": "tiny-bfloat"}
    model = tiny_model
    if precision != "fp32":
        name = names[precision]
        model = exports.model(name, tiny_checkpoint, precision=precision, candidates=16)
    graph = onnx.load(model / "step.onnx", load_external_data=False)
    assert target_faults(graph, (80, 86, 89, 120)) == []
    lacking = target_faults(graph, (75,))
    assert bool(lacking) == (precision == "bf16")


@pytest.mark.parametrize(("count", "faults"), [(3840, 0), (3841, 1)])
def test_topk(count: int, faults: int) -> None:
    top = helper.make_node("TopK", ["x", "k"], ["y", "i"], name="the_TopK")
    graph = graph_of([top], shape=(2, 9000), constants={"k": np.array([count], np.int64)})
    found = target_faults(graph, ())
    assert found == [f"node the_TopK (TopK) keeps {count}, at most 3840 can be built"] * faults


@pytest.mark.parametrize(("opset", "faults"), [(8, 1), (9, 0), (24, 0), (25, 1)])
def test_opset(opset: int, faults: int) -> None:
    found = target_faults(graph_of([node("Sigmoid", "x")], opset=opset), ())
    assert found == [f"opset is {opset}, expected 9 to 24"] * faults


def test_operators_that_are_not_there() -> None:
    quantize = helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])
    assert target_faults(graph_of([quantize]), ()) == [
        "1 DynamicQuantizeLinear node(s): not supported"
    ]


@pytest.mark.parametrize(
    ("kind", "operator", "fault"),
    [
        (TensorProto.INT64, "MatMul", "works on int64, expected floating point"),
        (TensorProto.INT32, "MatMul", "works on int32, expected floating point"),
        (TensorProto.INT64, "Add", None),
        (BOOL, "Add", "works on bool, expected float, int32 or int64"),
        (INT8, "Mul", "works on int8, expected float, int32 or int64"),
        (HALF, "MatMul", None),
        (BOOL, "And", None),
    ],
)
def test_types_an_operator_does_not_take(kind: int, operator: str, fault: str | None) -> None:
    graph = graph_of([node(operator, "x", "x")], kind, shape=(4, 4))
    expected = [] if fault is None else [f"node the_{operator} ({operator}) {fault}"]
    assert target_faults(graph, ()) == expected


def test_inner_types_are_known() -> None:
    nodes = [node("Cast", "x", out="c", to=TensorProto.INT32), node("Softmax", "c")]
    assert target_faults(graph_of(nodes), ()) == [
        "node the_Softmax (Softmax) works on int32, expected floating point"
    ]


@pytest.mark.parametrize(
    ("constants", "fault"),
    [
        ({"s": np.float32(0.1), "z": np.int8(0)}, None),
        ({"s": np.full(8, 0.1, np.float32), "z": np.zeros(8, np.int8)}, None),
        ({"s": np.float32(0.1), "z": np.int8(3)}, "has zero points other than 0"),
        ({"s": np.float32(0.1), "z": np.uint8(0)}, "is unsigned, expected a signed type"),
        ({"z": np.int8(0)}, ": its scale is computed, expected a constant"),
        ({"s": np.float32(0.1)}, ": its zero point is computed, expected 0"),
    ],
)
def test_quantisation_is_symmetric(constants: dict[str, Any], fault: str | None) -> None:
    graph = graph_of([node("QuantizeLinear", "x", "s", "z", axis=1)], constants=constants)
    for name, kind in (("s", FLOAT), ("z", INT8)):
        if name not in constants:
            graph.graph.input.append(helper.make_tensor_value_info(name, kind, ()))
    found = target_faults(graph, ())
    if fault is None:
        assert found == []
    else:
        assert [line.replace(" :", ":") for line in found] == [
            f"node the_QuantizeLinear (QuantizeLinear) {fault}".replace(" :", ":")
        ]


@pytest.mark.parametrize(
    ("kind", "capabilities", "fault"),
    [
        (TensorProto.BFLOAT16, (75, 89), "bf16, which SM 75 lacks (SM 80 and later have it)"),
        (TensorProto.BFLOAT16, (80,), None),
        (TensorProto.FLOAT8E4M3FN, (86, 89), "fp8, which SM 86 lacks (SM 89 and later have it)"),
        (TensorProto.FLOAT8E4M3FN, (89, 120), None),
        (TensorProto.FLOAT4E2M1, (89,), "fp4, which SM 89 lacks (SM 120 and later have it)"),
        (TensorProto.FLOAT16, (75,), None),
        (TensorProto.FLOAT8E4M3FN, (), None),  # GPU not known: nothing is claimed
    ],
)
def test_types_a_gpu_lacks(kind: int, capabilities: tuple[int, ...], fault: str | None) -> None:
    graph = graph_of([node("Identity", "x")], kind)
    expected = [] if fault is None else [f"the graph holds {fault}"]
    assert target_faults(graph, capabilities) == expected


@pytest.mark.parametrize(
    ("kind", "head", "faults"),
    [
        (HALF, 256, []),
        (HALF, 512, ["node the_Attention (Attention) has heads of 512, at most 256 fuse"]),
        (FLOAT, 64, ["node the_Attention (Attention) is fp32, only fp16 and bf16 fuse"]),
    ],
)
def test_fused_attention(kind: int, head: int, faults: list[str]) -> None:
    graph = graph_of([node("Attention", "x", "x", "x")], kind, (1, 2, 4, head), opset=23)
    assert target_faults(graph, ()) == faults


def test_old_notes_about_inner_types_do_not_count() -> None:
    graph = graph_of([node("Cast", "x", out="c", to=HALF), node("Softmax", "c")])
    graph.graph.value_info.append(helper.make_tensor_value_info("c", TensorProto.INT32, (4, 8)))
    assert target_faults(graph, ()) == []


def test_types_that_contradict_each_other() -> None:
    graph = graph_of([node("Softmax", "x")], HALF, constants={"x": np.ones((4, 8), np.float32)})
    (fault,) = target_faults(graph, ())
    assert fault.startswith("its types contradict each other: ")


def test_every_fault_is_listed() -> None:
    nodes = [
        node("MatMulInteger", "x", "x", out="a"),
        node("Add", "x", "x", out="b"),
        node("Softmax", "x"),
    ]
    assert len(target_faults(graph_of(nodes, INT8, (4, 4), opset=25), ())) == 4
