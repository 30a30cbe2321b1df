"""Cuts a saved step graph at its layers, found by the canonical names of its weights.

The residual stream entering a layer is what the layer's first norm divides. Suffixes behind a
canonical name (scales and integers of a quantised weight) are allowed.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from ...runtime.contract import LopaError

# Operators that only change how a weight is stored on its way to the operator that uses it.
CARRIERS = ("Cast", "DequantizeLinear", "Identity", "QuantizeLinear", "Reshape", "Transpose")
LOG_PROBS = "log_probs"
# Products whose channels may be scaled differently in a quantised model: the weights behind them
# take the scale back (SmoothQuant). Compared with the original they are only other units.
RESCALED = ("attention_norm", "mlp_norm", "attention", "up", "activation", "final_norm")
_QUANTISERS = ("DequantizeLinear", "QuantizeLinear")
_PARAMETER = re.compile(
    r"((?:layers\.(\d+)\.)?(?:experts\.)?(?:shared\.)?[a-z_]+)(?:\.(?:weight|bias).*)?"
)


@dataclass(frozen=True)
class Point:
    """A tensor inside a layer: the operation of the layer it belongs to, and who computes it."""

    operation: str  # "query", "attention", "mlp_norm", ...
    operator: str  # ONNX operator type
    tensor: str


@dataclass(frozen=True)
class Cut:
    """A part of a graph between two residual streams: "embed", "layers.3" or "head"."""

    name: str
    enters: str | None  # tensor it starts from; None: the graph's inputs alone
    leaves: str
    points: tuple[Point, ...]  # in the order of computation, the last is `leaves`


class LayerGraph:
    """The step graph of a bundle in memory, without its large weights."""

    def __init__(self, path: Path) -> None:
        """Load the graph; raises LopaError when its layers cannot be told apart."""
        self.path = path
        self._model = onnx.load(path, load_external_data=False)
        graph = self._model.graph
        self._nodes = list(graph.node)
        self._initializers = {item.name: item for item in graph.initializer}
        self._parameters: dict[str, list[str]] = defaultdict(list)  # of each operation
        for name in self._initializers:
            match = _PARAMETER.fullmatch(name)
            if match is not None:
                self._parameters[match[1]].append(name)
        self._inputs = {item.name: item for item in graph.input}
        self._producer = {name: n for n, node in enumerate(self._nodes) for name in node.output}
        self._consumers: dict[str, list[int]] = defaultdict(list)
        for number, node in enumerate(self._nodes):
            for name in node.input:
                self._consumers[name].append(number)
        self.cuts = self._find_cuts()

    def part(self, cut: Cut, points: bool) -> ModelProto:
        """The model that computes `cut.leaves`, and every point if asked, from `cut.enters`."""
        wanted = [point.tensor for point in cut.points] if points else [cut.leaves]
        numbers = self._ancestors(wanted, cut.enters)
        used = {name for number in numbers for name in self._nodes[number].input}
        inputs = [item for name, item in self._inputs.items() if name in used]
        if cut.enters is not None:
            # The residual stream is float32 in every precision (export/backbone.py).
            inputs.append(helper.make_tensor_value_info(cut.enters, TensorProto.FLOAT, None))
        graph = helper.make_graph(
            [self._nodes[number] for number in numbers],
            cut.name,
            inputs,
            [ValueInfoProto(name=name) for name in dict.fromkeys(wanted)],
            [item for name, item in self._initializers.items() if name in used],
        )
        return helper.make_model(
            graph,
            opset_imports=self._model.opset_import,
            ir_version=self._model.ir_version,
            functions=self._model.functions,
        )

    def _find_cuts(self) -> tuple[Cut, ...]:
        layers = {
            int(match[2])
            for match in map(_PARAMETER.fullmatch, self._parameters)
            if match is not None and match[2] is not None
        }
        if layers != set(range(len(layers))) or not layers:
            raise LopaError(f"{self.path}: no layers found by the names of the weights")
        norms = [f"layers.{layer}.attention_norm" for layer in sorted(layers)] + ["final_norm"]
        streams = [self._normed(name) for name in norms]
        streams[-1] = self._before_gather(streams[-1])
        cuts = [Cut("embed", None, streams[0], (self._point("embed", streams[0]),))]
        for layer, (enters, leaves) in enumerate(itertools.pairwise(streams)):
            points = self._points(layer, enters, leaves)
            cuts.append(Cut(f"layers.{layer}", enters, leaves, points))
        points = (
            *self._parameter_points(("final_norm", "head")),
            self._point("candidates", LOG_PROBS),
        )
        cuts.append(Cut("head", streams[-1], LOG_PROBS, points))
        return tuple(cuts)

    def _normed(self, norm: str) -> str:
        """The tensor that a norm is applied to."""
        node = self._nodes[self._users(norm)[0]]
        if node.op_type != "Mul":  # one operator for the whole norm
            return str(node.input[0])
        data = next(name for name in node.input if self._producer.get(name) is not None)
        divided = self._nodes[self._producer[data]]
        if divided.op_type != "Div":
            raise LopaError(f"{self.path}: {norm} follows {divided.op_type}, expected a norm")
        return str(divided.input[0])

    def _before_gather(self, stream: str) -> str:
        """The stream of all rows, before the head's rows are taken from it."""
        node = self._nodes[self._producer[stream]]
        return str(node.input[0]) if node.op_type == "Gather" else stream

    def _points(self, layer: int, enters: str, leaves: str) -> tuple[Point, ...]:
        """Everything in a layer that its weights name, and the residual stream in its middle."""
        prefix = f"layers.{layer}."
        named = [name for name in self._parameters if name.startswith(prefix)]
        found = self._parameter_points(named)
        middle = self._normed(f"{prefix}mlp_norm")
        found.append(self._point("attention residual", middle))
        for operation, source in (("output", "attention"), ("down", "activation")):
            for user in self._users(prefix + operation)[:1]:
                found.append(self._point(source, self._real(self._nodes[user].input[0])))
        found = [Point(p.operation.removeprefix(prefix), p.operator, p.tensor) for p in found]
        order = sorted({point.tensor: point for point in found}.values(), key=self._place)
        inside = [point for point in order if point.tensor not in (enters, leaves)]
        return (*inside, self._point("mlp residual", leaves))

    def _parameter_points(self, operations: Iterable[str]) -> list[Point]:
        """For each operation what the last user of its parameters computes."""
        found = []
        for operation in operations:
            users = self._users(operation)
            if users:
                found.append(self._point(operation, self._nodes[users[-1]].output[0]))
        return found

    def _users(self, operation: str) -> list[int]:
        """Nodes that use the parameters of an operation, in order; carriers are looked through."""
        names = list(self._parameters[operation])
        users: set[int] = set()
        seen: set[str] = set()
        while names:
            name = names.pop()
            if name in seen:
                continue
            seen.add(name)
            for number in self._consumers[name]:
                node = self._nodes[number]
                if node.op_type not in CARRIERS:
                    users.add(number)
                elif node.input[0] == name:  # not the scale of something else
                    names += node.output
        return sorted(users)

    def _real(self, tensor: str) -> str:
        """What was quantised, if `tensor` is the integers or what was made of them."""
        while self._nodes[self._producer[tensor]].op_type in _QUANTISERS:
            tensor = str(self._nodes[self._producer[tensor]].input[0])
        return tensor

    def _point(self, operation: str, tensor: str) -> Point:
        return Point(operation, self._nodes[self._producer[tensor]].op_type, tensor)

    def _place(self, point: Point) -> int:
        return self._producer[point.tensor]

    def _ancestors(self, wanted: Sequence[str], stop: str | None) -> list[int]:
        """Numbers of the nodes that `wanted` needs, not going behind `stop`, in order."""
        found: set[int] = set()
        names = [name for name in wanted if name != stop]
        while names:
            number = self._producer.get(names.pop())
            if number is None or number in found:
                continue
            found.add(number)
            node: NodeProto = self._nodes[number]
            names += [name for name in node.input if name and name != stop]
        return sorted(found)
