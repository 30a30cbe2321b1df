"""ONNX Runtime's own operator for routed experts: only the experts of a row run on it.

The portable graph runs every expert and weighs the outputs. Here each layer's products become one
`com.microsoft.MoE` node, whose weights are [E, 2 * I, d] (gate and up rows alternating) and
[E, d, I]. The operator routes by the softmax of what it is given, so it is given the logarithm of
the graph's routing weights, and its output is multiplied by their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from ...pruning import keep_needed
from ...weight_file import Array, append_tensor

DOMAIN = "com.microsoft"
SUFFIX = ".experts.down.weight"  # canonical name of the exporter
UNSEEN = 1e-30  # share of an expert a row is not sent to: its logarithm is far below any other


@dataclass(frozen=True)
class _Layer:
    """The dense products of one layer: values, the product to replace, experts per row."""

    name: str
    rows: str
    weights: str
    product: NodeProto
    experts: int
    per_row: int


def has_experts(model: onnx.ModelProto) -> bool:
    """Tell whether a graph has routed experts."""
    return any(tensor.name.endswith(SUFFIX) for tensor in model.graph.initializer)


def fuse_experts(model: onnx.ModelProto, source: Path, graph: Path, data: Path) -> None:
    """Write `model`, read from the folder `source`, with fused experts to `graph` and `data`."""
    layers = list(_layers(model))
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    made: dict[str, tuple[int, list[int], Callable[[], Iterator[Array]]]] = {}
    for layer in layers:
        _replace(model, layer, stored[f"{layer.name}.gate.weight"].data_type)
        for name, shape, pieces in _operator_weights(layer, stored, source):
            made[name] = (stored[f"{layer.name}.gate.weight"].data_type, shape, pieces)
    keep_needed(model.graph, model.graph.node)
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    with data.open("wb") as file:
        for tensor in model.graph.initializer:
            if tensor.data_location == TensorProto.EXTERNAL:
                raw = numpy_helper.to_array(tensor, str(source))
                append_tensor(file, tensor, data.name, [raw])
        for name, (element, shape, pieces) in made.items():
            tensor = TensorProto(name=name, data_type=element, dims=shape)
            append_tensor(file, tensor, data.name, pieces())
            model.graph.initializer.append(tensor)
    onnx.save(model, graph)


def _layers(model: onnx.ModelProto) -> Iterator[_Layer]:
    """Find the products of every layer by the names of their weights."""
    nodes = model.graph.node
    makers = {name: node for node in nodes for name in node.output}
    users = {node.input[1]: node for node in nodes if node.op_type == "MatMul"}
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    for weight in [name for name in stored if name.endswith(SUFFIX)]:
        name = weight.removesuffix(".down.weight")
        weighing = makers[makers[users[weight].input[0]].input[0]]  # under the reshape
        assert weighing.op_type == "Mul", weighing.op_type
        widened = next(makers[v] for v in weighing.input if makers[v].op_type == "Unsqueeze")
        weights = widened.input[0]
        if makers[weights].op_type == "Cast":  # the routing weights themselves are float32
            weights = makers[weights].input[0]
        ranking = _nearest(makers, weights, "TopK")
        yield _Layer(
            name,
            users[f"{name}.gate.weight"].input[0],
            weights,
            users[weight],
            stored[f"{name}.router"].dims[1],
            int(numpy_helper.to_array(stored[ranking.input[1]]).item()),
        )


def _nearest(makers: dict[str, NodeProto], value: str, kind: str) -> NodeProto:
    """Return the node of a kind that `value` depends on over the fewest others."""
    waiting, seen = [value], {value}
    while waiting:
        node = makers.get(waiting.pop(0))
        if node is None:
            continue
        if node.op_type == kind:
            return node
        fresh = [name for name in node.input if name not in seen]
        waiting += fresh
        seen.update(fresh)
    raise AssertionError(f"{value} depends on no {kind}")


def _replace(model: onnx.ModelProto, layer: _Layer, element: int) -> None:
    """Put the operator in the place of the down product."""
    half = element == TensorProto.FLOAT16
    constants: dict[str, Array] = {
        "axis": np.array([1], np.int64),
        "unseen": np.array([UNSEEN], np.float32),
    }
    for name, value in constants.items():
        tensor = numpy_helper.from_array(value, f"{layer.name}.{name}")
        model.graph.initializer.append(tensor)

    def node(kind: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
        scoped = [name.replace("@", f"{layer.name}.") for name in inputs]
        made = output.replace("@", f"{layer.name}.")
        return helper.make_node(kind, scoped, [made], name=made, **attributes)

    def typed(name: str) -> list[NodeProto]:
        return [node("Cast", [name], f"{name}_half", to=element)] if half else []

    tail = "_half" if half else ""
    nodes = [
        node("ReduceMax", [layer.weights, "@axis"], "@largest", keepdims=1),
        node("Div", [layer.weights, "@largest"], "@share"),
        node("Max", ["@share", "@unseen"], "@bounded"),
        node("Log", ["@bounded"], "@route"),
        *typed("@route"),
        node("ReduceSum", [layer.weights, "@axis"], "@total", keepdims=1),
        *typed("@total"),
        node(
            "MoE",
            [layer.rows, f"@route{tail}", "@inner", "", "@outer", ""],
            "@mixed",
            domain=DOMAIN,
            k=layer.per_row,
            activation_type="swiglu",
            swiglu_fusion=1,
            activation_alpha=1.0,
            activation_beta=0.0,
            normalize_routing_weights=1,
        ),
        node("Mul", ["@mixed", f"@total{tail}"], layer.product.output[0]),
    ]
    place = list(model.graph.node).index(layer.product)
    model.graph.node.remove(layer.product)
    for offset, made in enumerate(nodes):
        model.graph.node.insert(place + offset, made)


def _operator_weights(
    layer: _Layer, stored: dict[str, TensorProto], source: Path
) -> Iterator[tuple[str, list[int], Callable[[], Iterator[Array]]]]:
    """Name, shape and pieces, one per expert, of the operator's weights."""
    hidden, wide = stored[f"{layer.name}.gate.weight"].dims
    size = wide // layer.experts

    def read(name: str) -> Array:
        return numpy_helper.to_array(stored[f"{layer.name}.{name}.weight"], str(source))

    def inner() -> Iterator[Array]:
        gate, up = read("gate"), read("up")
        for start in range(0, wide, size):
            own = slice(start, start + size)
            yield np.stack([gate[:, own].T, up[:, own].T], 1)

    def outer() -> Iterator[Array]:
        down = read("down")
        for start in range(0, wide, size):
            yield down[start : start + size].T

    yield f"{layer.name}.inner", [layer.experts, 2 * size, hidden], inner
    yield f"{layer.name}.outer", [layer.experts, hidden, size], outer
