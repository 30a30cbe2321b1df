"""What the TensorRT targets want written differently than in the portable graph."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

AXIS = "last_axis"


def rewrite(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of `model` in which row-wise dot products are sums of products.

    The portable graph writes the entropy as a product of [R, 1, V] and [R, V, 1]. The compiler of
    TensorRT for RTX turns that into a constant of R * V floats for every profile, beside the
    weights, and keeps more [R, V] tensors alive; multiplied and summed, both are gone.
    """
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    graph = changed.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    products = [node for node in graph.node if _is_row_product(node, makers, stored)]
    for product in products:
        left, right = (makers[name].input[0] for name in product.input)
        (made,) = product.output
        nodes = [
            helper.make_node("Mul", [left, right], [f"{made}_terms"], name=f"{product.name}_terms"),
            helper.make_node(
                "ReduceSum", [f"{made}_terms", AXIS], [made], name=product.name, keepdims=0
            ),
        ]
        place = list(graph.node).index(product)
        graph.node.remove(product)
        for offset, node in enumerate(nodes):
            graph.node.insert(place + offset, node)
    if products:
        graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), AXIS))
    return changed


def _is_row_product(
    node: NodeProto, makers: dict[str, NodeProto], stored: dict[str, TensorProto]
) -> bool:
    """Tell whether a node multiplies rows [R, 1, V] with columns [R, V, 1]."""
    if node.op_type != "MatMul":
        return False
    sources = [makers.get(name) for name in node.input]
    axes = [
        numpy_helper.to_array(stored[source.input[1]]).tolist()
        for source in sources
        if source is not None and source.op_type == "Unsqueeze" and source.input[1] in stored
    ]
    return axes == [[1], [2]]
