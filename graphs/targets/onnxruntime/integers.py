"""ONNX Runtime's own integer products in the place of portable Q/DQ.

The library's fusion of Q/DQ round a product loses the fast kernel where a bias follows, and its
signed kernels are slow on x86. So every product between a Q/DQ pair and dequantised weights becomes
one `com.microsoft.MatMulIntegerToFloat` with unsigned activations around 128, which are the same
integers plus 128. Embedding tables of integers are looked up before they are dequantised.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from ...pruning import keep_needed

DOMAIN = "com.microsoft"
CENTRE = "centre_uint8"


def use_integer_kernels(model: onnx.ModelProto) -> bool:
    """Replace the quantised products and embeddings of `model` in place; False if it has none."""
    return _Rewriter(model).run()


class _Rewriter:
    def __init__(self, model: onnx.ModelProto) -> None:
        self.model, self.graph = model, model.graph
        self.stored = {tensor.name: tensor for tensor in self.graph.initializer}
        self.makers = {name: node for node in self.graph.node for name in node.output}
        self.users: dict[str, list[NodeProto]] = {}
        for node in self.graph.node:
            for name in node.input:
                self.users.setdefault(name, []).append(node)
        self.replaced: dict[str, list[NodeProto]] = {}  # by output
        self.quantized: set[str] = set()  # activations that are unsigned by now

    def run(self) -> bool:
        for node in list(self.graph.node):
            if node.op_type in ("MatMul", "Gemm"):
                self._product(node)
            elif node.op_type == "Gather":
                self._lookup(node)
        if not self.replaced:
            return False
        nodes = [
            made for node in self.graph.node for made in self.replaced.get(node.output[0], [node])
        ]
        keep_needed(self.graph, nodes)
        if not any(opset.domain == DOMAIN for opset in self.model.opset_import):
            self.model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
        return True

    def _product(self, node: NodeProto) -> None:
        rows, weight = (self.makers.get(name) for name in node.input)
        turned = node.op_type == "Gemm"  # rows times the embedding, turned
        if not (_dequantizes(rows) and _dequantizes(weight)):
            return
        assert rows is not None
        assert weight is not None
        quantize = self.makers.get(rows.input[0])
        tensor = self.stored.get(weight.input[0])
        if quantize is None or tensor is None or tensor.data_type != TensorProto.INT8:
            return
        name = node.output[0]
        half = self.stored[weight.input[1]].data_type == TensorProto.FLOAT16
        made = self._unsigned(quantize, half)
        matrix = weight.input[0]
        if turned:  # folded by the library
            matrix = f"{matrix}.turned"
            made.append(helper.make_node("Transpose", [weight.input[0]], [matrix], perm=[1, 0]))
        bias, output = "", name
        follower = self._bias(name)
        if follower is not None and not half:
            bias = next(other for other in follower.input if other != name)
            output = follower.output[0]
            self.replaced[output] = []
        scales = [
            f"{rows.input[1]}.single" if half else rows.input[1],
            self._single(weight.input[1], half, made),
        ]
        result = f"{output}.single" if half else output
        made.append(
            helper.make_node(
                "MatMulIntegerToFloat",
                [rows.input[0], matrix, *scales, CENTRE, "", bias],
                [result],
                name=weight.input[0].removesuffix(".weight"),
                domain=DOMAIN,
            )
        )
        if half:
            made.append(helper.make_node("Cast", [result], [output], to=TensorProto.FLOAT16))
        self.replaced[name] = made

    def _unsigned(self, quantize: NodeProto, half: bool) -> list[NodeProto]:
        """Make the quantisation of an activation unsigned, once."""
        if quantize.output[0] in self.quantized:
            return []
        self.quantized.add(quantize.output[0])
        if CENTRE not in self.stored:
            self._store(CENTRE, np.array(128, np.uint8))
        if not half:
            quantize.input[2] = CENTRE
            return []
        single = f"{quantize.input[0]}.single"
        made = [helper.make_node("Cast", [quantize.input[0]], [single], to=TensorProto.FLOAT)]
        scale = self._single(quantize.input[1], half, made)
        output = quantize.output[0]
        made.append(
            helper.make_node("QuantizeLinear", [single, scale, CENTRE], [output], quantize.name)
        )
        self.replaced[output] = made
        return []

    def _bias(self, name: str) -> NodeProto | None:
        """The addition of a stored vector that is all that reads `name`."""
        users = self.users.get(name, [])
        if len(users) != 1 or users[0].op_type != "Add":
            return None
        other = next((item for item in users[0].input if item != name), "")
        stored = other in self.stored and len(self.stored[other].dims) == 1
        return users[0] if stored else None

    def _lookup(self, node: NodeProto) -> None:
        table = self.makers.get(node.input[0])
        if not _dequantizes(table):
            return
        assert table is not None
        tensor, scale = self.stored[table.input[0]], self.stored[table.input[1]]
        if tensor.data_type != TensorProto.INT8:
            return
        ids, output = node.input[1], node.output[0]
        found, scales = f"{output}.integers", f"{output}.scales"
        axis = f"{output}.axis"
        self._store(axis, np.array([-1], np.int64))
        self.replaced[output] = [
            helper.make_node("Gather", [table.input[0], ids], [found]),
            helper.make_node("Cast", [found], [f"{output}.wide"], to=scale.data_type),
            helper.make_node("Gather", [table.input[1], ids], [scales]),
            helper.make_node("Unsqueeze", [scales, axis], [f"{scales}.column"]),
            helper.make_node("Mul", [f"{output}.wide", f"{scales}.column"], [output]),
        ]

    def _single(self, scale: str, half: bool, nodes: list[NodeProto]) -> str:
        """The name of a scale in single precision; the library folds the conversion."""
        if not half:
            return scale
        name = f"{scale}.single"
        nodes.append(helper.make_node("Cast", [scale], [name], to=TensorProto.FLOAT))
        return name

    def _store(self, name: str, value: np.ndarray) -> None:
        tensor = numpy_helper.from_array(value, name)
        self.graph.initializer.append(tensor)
        self.stored[name] = tensor


def _dequantizes(node: NodeProto | None) -> bool:
    return node is not None and node.op_type == "DequantizeLinear"
