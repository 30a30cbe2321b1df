"""Graph lint: what no target can capture or parse is found before a build, not after it."""

from __future__ import annotations

from collections import Counter

import onnx

from ..runtime.contract import CACHE_WINDOWS, INPUT_NAMES, OUTPUT_NAMES, LopaError

MAX_OPSET = 18  # Ascend's parser stops here
# Quantised graphs need more where scales are in half precision, or integers have 4 bits.
HALF_SCALE_OPSET, INT4_OPSET = 19, 21
# Shape nodes run on the CPU and break CUDA graph capture; control flow and data-dependent shapes
# cannot be captured at all.
FORBIDDEN = frozenset(
    {"Shape", "Size", "If", "Loop", "Scan", "NonZero", "Unique", "Compress", "Range", "Multinomial"}
)


class GraphError(LopaError):
    """A graph that does not obey the contract."""


def lint(model: onnx.ModelProto) -> list[str]:
    """List everything in `model` that breaks the engine contract or its portability rules."""
    graph = model.graph
    found = []
    for names, values, kind in (
        (INPUT_NAMES, graph.input, "inputs"),
        (OUTPUT_NAMES, graph.output, "outputs"),
    ):
        given = tuple(value.name for value in values)
        if given != names:
            found.append(f"{kind} are {', '.join(given)}; the contract says {', '.join(names)}")
    kinds = {value.name: _kind(value) for value in (*graph.input, *graph.output)}
    caches = [name for pair in CACHE_WINDOWS.items() for name in pair if name in kinds]
    if len({kinds[name] for name in caches}) > 1:
        listed = ", ".join(f"{name} {kinds[name]}" for name in caches)
        found.append(f"types are {listed}; caches and what fills them have one")
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version > (most := _max_opset(graph)):
            found.append(f"opset is {opset.version}, at most {most} is portable")
        elif opset.domain not in ("", "ai.onnx"):
            found.append(f"operator domain {opset.domain} is not portable")
    counts = Counter(node.op_type for node in graph.node if node.op_type in FORBIDDEN)
    found += [f"{count} {name} node(s): not capturable" for name, count in sorted(counts.items())]
    return found


def _max_opset(graph: onnx.GraphProto) -> int:
    """The lowest opset that has what a graph uses."""
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    if onnx.TensorProto.INT4 in kinds.values():
        return INT4_OPSET
    scales = {
        node.input[1]
        for node in graph.node
        if node.op_type in ("QuantizeLinear", "DequantizeLinear")
    }
    half = any(kinds.get(name) == onnx.TensorProto.FLOAT16 for name in scales)
    return HALF_SCALE_OPSET if half else MAX_OPSET


def _kind(value: onnx.ValueInfoProto) -> str:
    """Name of an element type, "int8"."""
    return str(onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)).lower()


def check_graph(model: onnx.ModelProto, name: str) -> None:
    """Raise GraphError listing every lint finding."""
    found = lint(model)
    if found:
        raise GraphError(f"{name}: {'; '.join(found)}; export it again with this lopa")
