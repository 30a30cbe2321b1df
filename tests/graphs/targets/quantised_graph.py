"""A model folder quantised by hand: INT8 activations, INT8 weights with a scale per channel."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
from lopa.runtime.manifest import read_model, record_files, write_manifest
from onnx import helper, numpy_helper

OPSET = 19  # half precision scales


def quantise(model: Path, out: Path) -> int:
    """Write the quantised copy of the folder `model` to `out`; returns the number of products."""
    out.mkdir()
    manifest = read_model(model)
    for name in manifest.files:
        (out / name).write_bytes((model / name).read_bytes())
    loaded = onnx.load(model / manifest.graph.file)
    graph = loaded.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    zero = numpy_helper.from_array(np.array(0, np.int8), "zero")
    step = numpy_helper.from_array(np.array(0.05, np.float16), "activation_scale")
    graph.initializer.extend([zero, step])
    products = [n for n in graph.node if n.op_type == "MatMul" and n.input[1] in stored]
    for product in products:
        rows, weight = product.input
        values = numpy_helper.to_array(stored[weight]).astype(np.float32)
        scale = np.abs(values).max(0) / 127 + 1e-6
        tensors = {
            f"{weight}.int8": np.rint(values / scale).astype(np.int8),
            f"{weight}.scale": scale.astype(np.float16),
            f"{weight}.zero": np.zeros(scale.shape, np.int8),
        }
        graph.initializer.remove(stored[weight])
        graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in tensors.items())
        made = [
            helper.make_node("QuantizeLinear", [rows, "activation_scale", "zero"], [f"{weight}.q"]),
            helper.make_node(
                "DequantizeLinear", [f"{weight}.q", "activation_scale", "zero"], [f"{weight}.x"]
            ),
            helper.make_node("DequantizeLinear", list(tensors), [f"{weight}.w"], axis=1),
        ]
        place = list(graph.node).index(product)
        for offset, node in enumerate(made):
            graph.node.insert(place + offset, node)
        product.input[:] = [f"{weight}.x", f"{weight}.w"]
    loaded.opset_import[0].version = OPSET
    onnx.save(loaded, out / "step.onnx", save_as_external_data=True, location="weights.data")
    graph_info = dataclasses.replace(manifest.graph, opset=OPSET)
    files = record_files(out, list(manifest.files))
    write_manifest(out, dataclasses.replace(manifest, graph=graph_info, files=files))
    return len(products)
