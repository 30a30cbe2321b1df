"""Writes an INT8 cache into a step graph.

Attention works in units of the scales, so that the cache is converted but never multiplied:

    scores = (query * s_k) @ concat(cached integers, key / s_k)
    output = (weights @ concat(cached integers, value / s_v)) * s_v

The window's own keys and values are not rounded there; what leaves as `window_keys` and
`window_values` is the same units as integers. Both conversions have the scale 1 and the zero point
0: DequantizeLinear takes scales along one axis alone, these have two (kv head and channel).
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

from ..graphs.weight_file import Piece, tensor_header
from ..runtime.contract import CACHE_WINDOWS
from .cache import CachePlan
from .sites import StepGraph, readers

ONE, ZERO = "cache.one", "cache.zero"
_MOVES = ("Transpose", "Unsqueeze")  # what lies between the joined keys and their product


def quantize_cache(model: onnx.ModelProto, graph: StepGraph, plan: CachePlan) -> list[Piece]:
    """Change `model`, a rewritten `graph`, in place; returns the constants it needs."""
    return _CacheWriter(model, graph).run(plan)


class _CacheWriter:
    def __init__(self, model: onnx.ModelProto, graph: StepGraph) -> None:
        self.model, self.source = model, graph
        (outputs,) = {
            value.type.tensor_type.elem_type
            for value in model.graph.output
            if value.name in CACHE_WINDOWS.values()
        }
        self.float = np.dtype(np.float16 if outputs == TensorProto.FLOAT16 else np.float32)
        self.users = readers(model)
        self.after: dict[str, list[NodeProto]] = defaultdict(list)  # by the output they follow
        self.before: dict[str, list[NodeProto]] = defaultdict(list)  # by the output they precede
        self.integers: set[str] = set()  # values that were floats
        self.pieces: list[Piece] = []

    def run(self, plan: CachePlan) -> list[Piece]:
        self._constant(ONE, np.array(1, self.float))
        self._constant(ZERO, np.array(0, np.int8))
        for cache, window in CACHE_WINDOWS.items():
            scale = plan.tensors[cache].scale
            for gather in self.users[cache]:
                layer = int(self.source.read(gather.input[1]))
                self._layer(f"{cache}.{layer}", gather, scale[layer])
            self._output(window)
            for value in (*self.model.graph.input, *self.model.graph.output):
                if value.name in (cache, window):
                    value.type.tensor_type.elem_type = TensorProto.INT8
        kept = [value for value in self.model.graph.value_info if value.name not in self.integers]
        del self.model.graph.value_info[:]
        self.model.graph.value_info.extend(kept)
        ordered: list[NodeProto] = []
        for node in self.model.graph.node:
            name = node.output[0]
            ordered += [*self.before[name], node, *self.after[name]]
        del self.model.graph.node[:]
        self.model.graph.node.extend(ordered)
        return self.pieces

    def _layer(self, name: str, gather: NodeProto, scale: NDArray[np.float32]) -> None:
        """Have the attention of a layer work in units of `scale` [H, 1, D]."""
        cached = gather.output[0]
        self.integers.add(cached)
        (join,) = self.users[cached]
        window = join.input[1]
        units, own = f"{name}.units", f"{name}.window"
        self.after[cached].append(
            helper.make_node("DequantizeLinear", [cached, ONE, ZERO], [units], f"{name}.dequantize")
        )
        self._constant(f"{name}.inverse", (1 / scale).astype(self.float))
        self.after[window].append(
            helper.make_node("Mul", [window, f"{name}.inverse"], [own], f"{name}.divide")
        )
        for reader in self.users[window]:  # the join, and what collects the layers' windows
            for index, given in enumerate(reader.input):
                if given == window:
                    reader.input[index] = own
        join.input[0] = units
        self._constant(f"{name}.scale", scale[:, None].astype(self.float))  # [H, 1, 1, D]
        product = self._product(join)
        if gather.input[0] == "cache_keys":
            self._scale_query(name, product)
        else:
            self._scale_result(name, product)

    def _product(self, join: NodeProto) -> NodeProto:
        """The product whose second input is the joined rows."""
        (node,) = self.users[join.output[0]]
        while node.op_type in _MOVES:
            (node,) = self.users[node.output[0]]
        return node

    def _scale_query(self, name: str, product: NodeProto) -> None:
        query, scaled = product.input[0], f"{name}.query"
        self.before[product.output[0]].append(
            helper.make_node("Mul", [query, f"{name}.scale"], [scaled], f"{name}.multiply")
        )
        product.input[0] = scaled

    def _scale_result(self, name: str, product: NodeProto) -> None:
        result, raw = product.output[0], f"{name}.result"
        product.output[0] = raw
        self.after[raw].append(
            helper.make_node("Mul", [raw, f"{name}.scale"], [result], f"{name}.multiply")
        )

    def _output(self, window: str) -> None:
        """Round the units of all layers on their way out."""
        (collect,) = (node for node in self.model.graph.node if window in node.output)
        units = f"{window}.units"
        collect.output[0] = units
        self.after[units].append(
            helper.make_node("QuantizeLinear", [units, ONE, ZERO], [window], f"{window}.quantize")
        )

    def _constant(self, name: str, value: NDArray[np.generic]) -> None:
        element = helper.np_dtype_to_tensor_dtype(value.dtype)
        header = tensor_header(name, element, list(value.shape))
        self.pieces.append(Piece((header,), lambda: [value]))
