"""The matrix products of a step graph that can be quantised, and what precedes each of them.

A site is one activation tensor with all products that read it: they share its integers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, numpy_helper

from ..runtime.contract import LopaError

WEIGHT = ".weight"
HEAD = "head"
# Routed experts stay in the model's precision: targets replace them by their own operators.
EXPERTS = (".experts.", ".router")

Array = NDArray[Any]


@dataclass(frozen=True)
class Product:
    """One product of rows with a stored matrix.

    `weight` is the stored tensor, [K, N], or [N, K] when `transposed` (the Gemm of a tied head).
    """

    name: str
    node: str  # its output
    weight: str
    transposed: bool


@dataclass(frozen=True)
class Scaled:
    """What can take over a scale per channel: a norm's weight [K], or columns of a product.

    `tensors` are stored tensors whose last axis is the channels.
    """

    tensors: tuple[str, ...]


@dataclass(frozen=True)
class Site:
    """An activation tensor [N, K], the products that read it, and what can absorb scales."""

    name: str
    tensor: str
    products: tuple[Product, ...]
    before: Scaled | None

    @property
    def is_head(self) -> bool:
        """Whether its rows are head rows, not window rows."""
        return self.products[0].name == HEAD


class StepGraph:
    """A step graph with its producers, consumers and stored tensors, read one at a time."""

    def __init__(self, folder: Path, file: str) -> None:
        self.folder = folder
        self.model = onnx.load(folder / file, load_external_data=False)
        self.stored = {tensor.name: tensor for tensor in self.model.graph.initializer}
        self.makers = {name: node for node in self.model.graph.node for name in node.output}
        self.users = readers(self.model)

    def read(self, name: str) -> Array:
        """Read a stored tensor; raises LopaError where onnx refuses its file, say for a link."""
        try:
            return numpy_helper.to_array(self.stored[name], str(self.folder))
        except onnx.checker.ValidationError as error:
            raise LopaError(f"cannot read {name}: {error}; put a copy of the file there") from None

    def matrix(self, product: Product) -> Array:
        """Read the weight of a product as [K, N] in float32."""
        weight = self.read(product.weight).astype(np.float32)
        return np.ascontiguousarray(weight.T) if product.transposed else weight

    def depth(self, product: Product) -> int:
        """K of a product: the channels of its activation."""
        return int(self.stored[product.weight].dims[1 if product.transposed else 0])

    def embedding(self) -> NodeProto:
        """The node that looks the input tokens up in the embedding table."""
        found: NodeProto = next(
            node
            for node in self.model.graph.node
            if node.op_type == "Gather" and node.input[0] == "embed"
        )
        return found


def readers(model: onnx.ModelProto) -> dict[str, list[NodeProto]]:
    """The nodes that read each value, in order; none for a value that is not read."""
    found: dict[str, list[NodeProto]] = defaultdict(list)
    for node in model.graph.node:
        for name in dict.fromkeys(node.input):
            found[name].append(node)
    return found


def find_sites(graph: StepGraph) -> tuple[Site, ...]:
    """List the sites of a graph in the order of computation.

    Raises LopaError for a graph that is quantised already.
    """
    if any(node.op_type == "DequantizeLinear" for node in graph.model.graph.node):
        raise LopaError(f"{graph.folder} is quantised already; calibrate the model it came from")
    products: dict[str, list[Product]] = defaultdict(list)
    for node in graph.model.graph.node:
        product = _product(graph, node)
        if product is not None:
            products[node.input[0]].append(product)
    return tuple(
        Site(_site_name(found), tensor, tuple(found), _before(graph, tensor, found))
        for tensor, found in products.items()
    )


def _product(graph: StepGraph, node: NodeProto) -> Product | None:
    if node.op_type not in ("MatMul", "Gemm"):
        return None
    weight, transposed = node.input[1], node.op_type == "Gemm"  # rows times the embedding, turned
    if weight not in graph.stored or len(graph.stored[weight].dims) != 2:
        return None
    if any(part in weight for part in EXPERTS):
        return None
    name = HEAD if transposed else weight.removesuffix(WEIGHT)
    return Product(name, node.output[0], weight, transposed)


def _site_name(products: list[Product]) -> str:
    """``layers.0.query+key+value``, ``head``."""
    first = products[0].name
    return "+".join([first, *(item.name.rpartition(".")[2] for item in products[1:])])


def _before(graph: StepGraph, tensor: str, products: list[Product]) -> Scaled | None:
    """Find what the inverse of a channel scale on `tensor` can be folded into.

    The values of attention could pass one on to the output projection, but they are stored in the
    cache, whose contents must mean the same in every precision of a model.
    """
    if any(product.transposed for product in products):  # the embedding reads that matrix too
        return None
    outputs = {product.node for product in products}
    maker = graph.makers[tensor]
    if maker.op_type == "Cast" and len(graph.users[maker.output[0]]) == len(outputs):
        if len(graph.users[maker.input[0]]) != 1:
            return None
        maker = graph.makers[maker.input[0]]
    elif not all(user.output[0] in outputs for user in graph.users[tensor]):
        return None
    if maker.op_type != "Mul":
        return None
    for name in maker.input:
        if name in graph.stored and len(graph.stored[name].dims) == 1:
            return Scaled((name,))
    for name in maker.input:
        columns = _columns(graph, name)
        if columns:
            return Scaled(columns)
    return None


def _columns(graph: StepGraph, name: str) -> tuple[str, ...]:
    """Weight and bias of the product that makes `name`, if nothing else reads it."""
    maker = graph.makers[name]
    found: tuple[str, ...] = ()
    if len(graph.users[name]) != 1:
        return ()
    if maker.op_type == "Add" and maker.input[1] in graph.stored:
        found = (maker.input[1],)
        maker = graph.makers[maker.input[0]]
    if maker.op_type == "MatMul" and maker.input[1] in graph.stored:
        return (maker.input[1], *found)
    return ()
