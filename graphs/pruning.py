"""Takes out of a rewritten graph what nothing needs any more."""

from __future__ import annotations

from collections.abc import Sequence

from onnx import GraphProto, NodeProto


def keep_needed(graph: GraphProto, nodes: Sequence[NodeProto]) -> None:
    """Make `nodes` the graph's, without those, and stored tensors, that no output needs.

    Every node comes after those that make its inputs, as in any valid graph.
    """
    needed = {value.name for value in graph.output}
    kept = []
    for node in reversed(nodes):
        if any(name in needed for name in node.output):
            kept.append(node)
            needed.update(node.input)
    del graph.node[:]
    graph.node.extend(reversed(kept))
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in needed]:
        graph.initializer.remove(tensor)
