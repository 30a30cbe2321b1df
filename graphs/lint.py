"""Graph lint: what no target can capture or parse is found before a build, not after it."""

from __future__ import annotations

from collections import Counter

import onnx

from ..runtime.contract import INPUT_NAMES, OUTPUT_NAMES, LopaError

MAX_OPSET = 18  # Ascend's parser stops here
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
    for opset in model.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version > MAX_OPSET:
            found.append(f"opset is {opset.version}, at most {MAX_OPSET} is portable")
        elif opset.domain not in ("", "ai.onnx"):
            found.append(f"operator domain {opset.domain} is not portable")
    counts = Counter(node.op_type for node in graph.node if node.op_type in FORBIDDEN)
    found += [f"{count} {name} node(s): not capturable" for name, count in sorted(counts.items())]
    return found


def check_graph(model: onnx.ModelProto, name: str) -> None:
    """Raise GraphError listing every lint finding."""
    found = lint(model)
    if found:
        raise GraphError(f"{name}: {'; '.join(found)}; export it again with this lopa")
