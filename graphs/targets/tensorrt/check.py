"""Lint for the TensorRT targets: what their parsers or builders refuse is found before a build.

Limits are those of the parser's operator table (TensorRT 11) and of
builds with TensorRT for RTX 1.7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, numpy_helper

OPSETS = range(9, 25)
LARGEST_TOPK = 3840
LARGEST_ATTENTION_HEAD = 256
# Lowest compute capability that has the type at all.
FIRST_CAPABILITY = {
    TensorProto.BFLOAT16: ("bf16", 80),
    TensorProto.INT4: ("int4", 80),
    TensorProto.FLOAT8E4M3FN: ("fp8", 89),
    TensorProto.FLOAT4E2M1: ("fp4", 120),
}
UNSUPPORTED = frozenset(
    {
        "Bernoulli",
        "BitShift",
        "BitwiseAnd",
        "BitwiseNot",
        "BitwiseOr",
        "BitwiseXor",
        "Compress",
        "Det",
        "DynamicQuantizeLinear",
        "MatMulInteger",
        "Multinomial",
        "QLinearConv",
        "QLinearMatMul",
        "Unique",
    }
)
_FLOATS = frozenset(
    {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}
)
_INTEGERS = frozenset({TensorProto.INT32, TensorProto.INT64})
# Operators that take floating point alone, and those that take integers too but no bool.
# fmt: off
_FLOAT_ONLY = frozenset({
    "Cos", "Einsum", "Erf", "Exp", "Gemm", "Log", "LogSoftmax", "MatMul", "Reciprocal", "Sigmoid",
    "Sin", "Softmax", "Sqrt", "Tanh",
})
_NUMERIC = frozenset({
    "Abs", "Add", "Div", "Max", "Min", "Mod", "Mul", "Neg", "Pow", "ReduceMax", "ReduceSum", "Sub",
    "TopK",
})
# fmt: on


@dataclass(frozen=True)
class _Graph:
    """Nodes with what is known about the values they read."""

    nodes: Sequence[NodeProto]
    constants: dict[str, TensorProto]
    types: dict[str, int]
    shapes: dict[str, list[int]]  # 0: not known


def target_faults(model: onnx.ModelProto, capabilities: Sequence[int]) -> list[str]:
    """List what keeps `model` from being built for GPUs of the given compute capabilities.

    Weights may be left in their external file.
    """
    try:
        graph = _read(model)
    except onnx.shape_inference.InferenceError as error:
        return [f"its types contradict each other: {error}"]
    opsets = [item.version for item in model.opset_import if item.domain in ("", "ai.onnx")]
    found = [
        f"opset is {version}, expected {OPSETS.start} to {OPSETS.stop - 1}"
        for version in opsets
        if version not in OPSETS
    ]
    counts = Counter(node.op_type for node in graph.nodes if node.op_type in UNSUPPORTED)
    found += [f"{count} {name} node(s): not supported" for name, count in sorted(counts.items())]
    found += _type_faults(graph)
    found += _limit_faults(graph)
    found += _quantisation_faults(graph)
    found += _capability_faults(graph.types.values(), capabilities)
    return found


def precision_faults(precision: str, capabilities: Sequence[int]) -> list[str]:
    """List what keeps graphs of a precision from such GPUs: asked before there is a graph."""
    used = [TensorProto.BFLOAT16] if precision == "bf16" else []
    return list(_capability_faults(used, capabilities))


def _read(model: onnx.ModelProto) -> _Graph:
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    del plain.graph.value_info[:]  # may be of an earlier state of the graph
    inferred = onnx.shape_inference.infer_shapes(plain)
    types: dict[str, int] = {}
    shapes: dict[str, list[int]] = {}
    for value in (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output):
        types[value.name] = value.type.tensor_type.elem_type
        shapes[value.name] = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            constants[node.output[0]] = node.attribute[0].t
    for name, tensor in constants.items():
        types[name], shapes[name] = tensor.data_type, list(tensor.dims)
    return _Graph(model.graph.node, constants, types, shapes)


def _type_faults(graph: _Graph) -> Iterator[str]:
    """Operands of a type that the operator does not take there; the types of ONNX are wider."""
    for node in graph.nodes:
        if node.op_type in _FLOAT_ONLY:
            taken, said = _FLOATS, "floating point"
        elif node.op_type in _NUMERIC:
            taken, said = _FLOATS | _INTEGERS, "float, int32 or int64"
        else:
            continue
        given = graph.types.get(node.input[0], 0)
        if given and given not in taken:
            yield f"{_place(node)} works on {_type_name(given)}, expected {said}"


def _limit_faults(graph: _Graph) -> Iterator[str]:
    for node in graph.nodes:
        if node.op_type == "TopK" and node.input[1] in graph.constants:
            count = int(_values(graph, node.input[1]).item())
            if count > LARGEST_TOPK:
                yield f"{_place(node)} keeps {count}, at most {LARGEST_TOPK} can be built"
        elif node.op_type == "Attention":
            head = (graph.shapes.get(node.input[0]) or [0])[-1]
            if len(graph.shapes.get(node.input[0], [])) == 4 and head > LARGEST_ATTENTION_HEAD:
                yield f"{_place(node)} has heads of {head}, at most {LARGEST_ATTENTION_HEAD} fuse"
            if graph.types.get(node.input[0]) == TensorProto.FLOAT:
                yield f"{_place(node)} is fp32, only fp16 and bf16 fuse"


def _quantisation_faults(graph: _Graph) -> Iterator[str]:
    """Quantisation must be symmetric with scales that are known when the engine is built."""
    for node in graph.nodes:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        if node.input[1] not in graph.constants:
            yield f"{_place(node)}: its scale is computed, expected a constant"
        zero = node.input[2] if len(node.input) > 2 else ""
        if not zero:
            continue
        if graph.types.get(zero) in (TensorProto.UINT8, TensorProto.UINT4):
            yield f"{_place(node)} is unsigned, expected a signed type"
        elif zero not in graph.constants:
            yield f"{_place(node)}: its zero point is computed, expected 0"
        elif _is_stored(graph.constants[zero]) and np.any(
            _values(graph, zero).astype(np.float32) != 0
        ):
            yield f"{_place(node)} has zero points other than 0"


def _capability_faults(used: Iterable[int], capabilities: Sequence[int]) -> Iterator[str]:
    lowest = min(capabilities, default=None)
    if lowest is None:
        return
    for kind in FIRST_CAPABILITY.keys() & set(used):
        name, first = FIRST_CAPABILITY[kind]
        if lowest < first:
            yield f"the graph holds {name}, which SM {lowest} lacks (SM {first} and later have it)"


def _values(graph: _Graph, name: str) -> NDArray[Any]:
    return numpy_helper.to_array(graph.constants[name])


def _is_stored(tensor: TensorProto) -> bool:
    return tensor.data_location != TensorProto.EXTERNAL


def _place(node: NodeProto) -> str:
    return f"node {node.name or node.output[0]} ({node.op_type})"


def _type_name(kind: int) -> str:
    return str(TensorProto.DataType.Name(kind)).lower()
