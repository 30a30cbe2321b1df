"""Writes a plan into a step graph: integer weights, Q/DQ pairs, migrated scales.

The result is portable: symmetric integers with zero point 0, one scale per tensor for activations
and one per output column (or block of rows) for weights, each DequantizeLinear directly before its
product, as TensorRT fuses them. Biases, residual stream, norms, softmax and logits stay floats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from ..graphs.weight_file import Piece, pack_int4, tensor_header
from .cache import CachePlan
from .cache_graph import quantize_cache
from .integers import BLOCK, blocks_int4, columns_int8, scale_of
from .plan import SitePlan
from .recipe import EMBEDDING
from .sites import Product, StepGraph

ZERO = "zero_int8"
OPSETS = {"fp16": 19, "int4": 21}  # that brought half-precision scales and 4-bit integers

Array = NDArray[Any]


@dataclass
class Rewritten:
    """A graph without data and what makes the data of each of its stored tensors."""

    model: onnx.ModelProto
    pieces: list[Piece] = field(default_factory=list)


def rewrite(
    graph: StepGraph,
    plans: Sequence[SitePlan],
    embedding: str = "model",
    cache: CachePlan | None = None,
) -> Rewritten:
    """Return the graph that obeys `plans`; `embedding` is the precision of the token table.

    With `cache` keys and values go in and out as 8-bit integers.
    """
    return _Rewriter(graph, plans, embedding).result(cache)


class _Rewriter:
    def __init__(self, graph: StepGraph, plans: Sequence[SitePlan], embedding: str) -> None:
        self.graph, self.plans, self.embedding = graph, plans, embedding
        self.model = onnx.ModelProto()
        self.model.CopyFrom(graph.model)
        self.nodes = {node.output[0]: node for node in self.model.graph.node}
        self.before: dict[str, list[NodeProto]] = {}  # by output: nodes to put ahead of it
        self.rows: dict[str, Array] = {}  # stored matrix -> factor of its rows [K, 1]
        self.columns: dict[str, Array] = {}  # stored tensor -> factor of its last axis
        self.made: dict[str, Piece] = {}  # by the stored tensor they replace or a new name
        self.opset = 0
        first = plans[0].site.products[0].weight
        self.half = graph.stored[first].data_type == TensorProto.FLOAT16
        self.float = np.dtype(np.float16 if self.half else np.float32)

    def result(self, cache: CachePlan | None) -> Rewritten:
        for plan in self.plans:
            self._migrate(plan)
        for plan in self.plans:
            if plan.integer:
                self._activation(plan)
            for product in plan.site.products:
                self._weight(product, plan.precisions[product.name])
        self._embed()
        self._replace_tensors()
        ordered: list[NodeProto] = []
        for node in self.model.graph.node:
            ordered += [*self.before.get(node.output[0], ()), node]
        del self.model.graph.node[:]
        self.model.graph.node.extend(ordered)
        pieces = [self.made[name] for name in sorted(self.made)]
        if cache is not None:
            pieces += quantize_cache(self.model, self.graph, cache)
            self._needs("fp16" if self.half else "")
        for opset in self.model.opset_import:
            opset.version = max(opset.version, self.opset)
        if self.opset:
            self.model.ir_version = max(self.model.ir_version, 10)
        return Rewritten(self.model, pieces)

    def _migrate(self, plan: SitePlan) -> None:
        """Fold the channel scales of a site into what comes before it and into its matrices."""
        if plan.channels is None:
            return
        assert plan.site.before is not None
        for name in plan.site.before.tensors:
            self.columns[name] = 1 / plan.channels
        for product in plan.site.products:
            self.rows[product.weight] = plan.channels[:, None]

    def _activation(self, plan: SitePlan) -> None:
        """Put one Q/DQ pair on the activation; all integer products of the site read it."""
        name, tensor = f"{plan.site.name}.input", plan.site.tensor
        scale = f"{name}.scale"
        value = scale_of(plan.largest).astype(self.float)
        self._store(scale, value)
        self._store(ZERO, np.array(0, np.int8))
        pair = [
            helper.make_node(
                "QuantizeLinear", [tensor, scale, ZERO], [f"{name}.integers"], f"{name}.quantize"
            ),
            helper.make_node(
                "DequantizeLinear",
                [f"{name}.integers", scale, ZERO],
                [f"{name}.rounded"],
                f"{name}.dequantize",
            ),
        ]
        integer = [p for p in plan.site.products if plan.precisions[p.name] == "int8"]
        for product in integer:
            self.nodes[product.node].input[0] = f"{name}.rounded"
        self.before.setdefault(integer[0].node, []).extend(pair)
        self._needs("fp16" if self.half else "")

    def _weight(self, product: Product, precision: str) -> None:
        """Store a matrix as integers with scales and put the DequantizeLinear that reads them."""
        if precision in ("model", "fp16"):
            return
        if precision == "int4-weight" and self.graph.depth(product) % BLOCK:
            precision = "int8-weight"
        self._needs("fp16" if self.half else "")
        weight, scale = product.weight, f"{product.weight}_scale"
        shape = list(self.graph.stored[weight].dims)
        if precision == "int4-weight":
            self._needs("int4")
            assert not product.transposed

            def four() -> list[Array]:
                integers, scales = blocks_int4(self._matrix(weight).astype(np.float32))
                return [pack_int4(integers), scales.astype(self.float)]

            headers = [
                tensor_header(weight, TensorProto.INT4, shape),
                self._header(scale, [shape[0] // BLOCK, shape[1]]),
            ]
            self.made[weight] = Piece(tuple(headers), four)
            self._dequantize(weight, scale, axis=0, block_size=BLOCK)
            return

        def eight() -> list[Array]:
            matrix = self._matrix(weight).astype(np.float32)
            integers, scales = columns_int8(matrix.T if product.transposed else matrix, self.float)
            return [integers.T if product.transposed else integers, scales]

        axis = 0 if product.transposed else 1
        headers = [
            tensor_header(weight, TensorProto.INT8, shape),
            self._header(scale, [shape[axis]]),
        ]
        self.made[weight] = Piece(tuple(headers), eight)
        self._dequantize(weight, scale, axis=axis)

    def _dequantize(self, weight: str, scale: str, **attributes: Any) -> None:
        """Make every reader of a stored tensor read its dequantised values."""
        value = f"{weight}.rounded"
        node = helper.make_node(
            "DequantizeLinear", [weight, scale], [value], f"{weight}.dequantize", **attributes
        )
        users = [other for other in self.model.graph.node if weight in other.input]
        for reader in users:
            for index, name in enumerate(reader.input):
                if name == weight:
                    reader.input[index] = value
        self.before.setdefault(users[0].output[0], []).append(node)

    def _embed(self) -> None:
        """Store the token table in half precision, or as integers with one scale per token."""
        if self.embedding == "model" or EMBEDDING in self.made:
            return
        gather = self.nodes[self.graph.embedding().output[0]]
        shape = list(self.graph.stored[EMBEDDING].dims)
        if self.embedding == "fp16":
            if self.half or len(self.graph.users[EMBEDDING]) > 1:
                return

            def half() -> list[Array]:
                return [self.graph.read(EMBEDDING).astype(np.float16)]

            header = tensor_header(EMBEDDING, TensorProto.FLOAT16, shape)
            self.made[EMBEDDING] = Piece((header,), half)
            found, output = f"{EMBEDDING}.half", gather.output[0]
            node = helper.make_node("Gather", list(gather.input), [found], f"{EMBEDDING}.gather")
            gather.CopyFrom(
                helper.make_node("Cast", [found], [output], gather.name, to=TensorProto.FLOAT)
            )
            self.before.setdefault(output, []).append(node)
            return

        def eight() -> list[Array]:
            integers, scales = columns_int8(
                self.graph.read(EMBEDDING).astype(np.float32).T, self.float
            )
            return [integers.T, scales]

        scale = f"{EMBEDDING}_scale"
        headers = (
            tensor_header(EMBEDDING, TensorProto.INT8, shape),
            self._header(scale, [shape[0]]),
        )
        self.made[EMBEDDING] = Piece(headers, eight)
        self._dequantize(EMBEDDING, scale, axis=0)

    def _matrix(self, name: str) -> Array:
        """A stored tensor with the migrated scales in it."""
        values = self.graph.read(name)
        for factor in (self.rows.get(name), self.columns.get(name)):
            if factor is not None:
                values = (values.astype(np.float32) * factor).astype(values.dtype)
        return values

    def _replace_tensors(self) -> None:
        """Make the graph's list of stored tensors agree with the pieces."""
        for tensor in self.graph.model.graph.initializer:
            name = tensor.name
            if name not in self.made:
                header = tensor_header(name, tensor.data_type, list(tensor.dims))
                touched = name in self.rows or name in self.columns
                source = None if touched else tensor
                self.made[name] = Piece((header,), self._reader(name), source)
        del self.model.graph.initializer[:]

    def _reader(self, name: str) -> Callable[[], list[Array]]:
        return lambda: [self._matrix(name)]

    def _store(self, name: str, value: Array) -> None:
        element = helper.np_dtype_to_tensor_dtype(value.dtype)
        header = tensor_header(name, element, list(value.shape))
        self.made[name] = Piece((header,), lambda: [value])

    def _header(self, name: str, shape: list[int]) -> TensorProto:
        return tensor_header(name, TensorProto.FLOAT16 if self.half else TensorProto.FLOAT, shape)

    def _needs(self, feature: str) -> None:
        self.opset = max(self.opset, OPSETS.get(feature, 0))
