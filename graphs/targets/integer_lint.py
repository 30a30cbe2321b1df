"""Proves that quantised products run in integers: by placement rules, and by ONNX Runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from ...runtime.contract import CACHE_WINDOWS
from ...runtime.engines.onnxruntime.library import load_library
from ...runtime.manifest import ModelManifest
from .onnxruntime.integers import use_integer_kernels

# Precision of a product -> operators of ONNX Runtime that multiply its integers, or unpack its
# weights block by block on the way into the product.
KERNELS = {
    "int8": frozenset({"MatMulIntegerToFloat", "QLinearMatMul", "QGemm"}),
    "int8-weight": frozenset({"MatMulNBits"}),
    "int4-weight": frozenset({"MatMulNBits"}),
}


def placement_findings(model: onnx.ModelProto, folder: Path) -> list[str]:
    """List what TensorRT would not fuse in a portable graph, its external data in `folder`.

    Its rules: symmetric integers with zero point 0, constant scales, one scale per tensor for
    activations and one per output column (or block of rows) for weights, Q followed by DQ, each DQ
    read by products alone, both inputs of an integer product dequantised.
    """
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    users: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    found = []
    for node in graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            continue
        scale = stored.get(node.input[1])
        if scale is None:
            found.append(f"{node.name}: its scale is not constant")
        if len(node.input) > 2 and node.input[2]:
            zero = stored.get(node.input[2])
            if zero is None or np.any(numpy_helper.to_array(zero, str(folder))):
                found.append(f"{node.name}: its zero point is not 0")
            elif zero.data_type == TensorProto.UINT8:
                found.append(f"{node.name}: unsigned integers, TensorRT takes signed ones")
        readers = users.get(node.output[0], [])
        if node.op_type == "QuantizeLinear":
            if scale is not None and scale.dims:
                found.append(f"{node.name}: {list(scale.dims)} scales for an activation, not one")
            found += [
                f"{node.name}: read by {reader.op_type} {reader.name}, not DequantizeLinear"
                for reader in readers
                if reader.op_type != "DequantizeLinear"
            ]
            continue
        weight = stored.get(node.input[0])
        if weight is None:
            maker = makers.get(node.input[0])
            if maker is not None and maker.input[0] in CACHE_WINDOWS:
                continue  # keys or values of a layer, which attention reads as floats
            if maker is None or maker.op_type != "QuantizeLinear":
                found.append(f"{node.name}: reads neither QuantizeLinear nor stored integers")
            elif maker.input[1] != node.input[1]:
                found.append(f"{node.name}: its scale is not that of {maker.name}")
        found += list(_reader_findings(node, weight, readers, makers, stored))
    return found


def _reader_findings(
    node: NodeProto,
    weight: TensorProto | None,
    readers: list[NodeProto],
    makers: dict[str, NodeProto],
    stored: dict[str, TensorProto],
) -> Iterator[str]:
    """What is wrong with how a DequantizeLinear is read."""
    for reader in readers:
        name, axis = node.output[0], 0 if reader.op_type == "Gemm" else 1
        if weight is not None and reader.op_type == "Gather":
            continue  # an embedding table, which is looked up in floats
        if reader.op_type not in ("MatMul", "Gemm"):
            yield f"{node.name}: read by {reader.op_type} {reader.name}, not by a product"
        elif weight is not None:
            if reader.input[1] != name:
                yield f"{node.name}: is not the second input of {reader.name}"
            scale = stored.get(node.input[1])
            attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
            if "block_size" in attributes:
                continue
            columns = weight.dims[axis]
            if attributes.get("axis", 1) != axis or (
                scale is not None and list(scale.dims) != [columns]
            ):
                yield f"{node.name}: not one scale per output column of {reader.name}"
        elif reader.input[0] != name:
            yield f"{node.name}: is not the first input of {reader.name}"
        else:
            other = makers.get(reader.input[1])
            if other is None or other.op_type != "DequantizeLinear":
                yield f"{reader.name}: its weight is not quantised, the product runs in floats"


def kernel_findings(model: onnx.ModelProto, folder: Path, layers: Mapping[str, str]) -> list[str]:
    """List products that ONNX Runtime would not run with a kernel of their precision.

    `model` is a graph as the target builds it, its external data in `folder`; `layers` maps product
    names to precisions. The library optimises the graph, and what it would run is inspected.
    """
    ran = kernels(optimised(model, folder))
    found = []
    for name, precision in layers.items():
        wanted = KERNELS.get(precision)
        if wanted is not None and ran.get(name) not in wanted:
            found.append(f"{name}: {precision}, but runs as {ran.get(name, 'a float product')}")
    return found


def kernels(model: onnx.ModelProto) -> dict[str, str]:
    """Operator by product name, of the products of an optimised graph with stored integers.

    The library appends to the names of weights that it turns or repacks.
    """
    every = frozenset[str]().union(*KERNELS.values())
    found = {}
    for node in model.graph.node:
        if node.op_type in every:
            name = node.input[1].removesuffix("_T").removesuffix(".turned").removesuffix(".weight")
            found["head" if name == "embed" else name] = node.op_type
    return found


def optimised(model: onnx.ModelProto, folder: Path) -> onnx.ModelProto:
    """Return the graph that ONNX Runtime makes of `model`, without its data."""
    library = load_library()
    options = library.SessionOptions()
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as temporary:
        options.optimized_model_filepath = str(Path(temporary, "step.onnx"))
        for key, value in (
            ("session.model_external_initializers_file_folder_path", str(folder)),
            ("session.optimized_model_external_initializers_file_name", "step.data"),
            ("session.optimized_model_external_initializers_min_size_in_bytes", "1024"),
        ):
            options.add_session_config_entry(key, value)
        library.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return onnx.load(options.optimized_model_filepath, load_external_data=False)


def integer_findings(folder: Path, manifest: ModelManifest) -> list[str]:
    """List every product of a quantised model folder that would not run as it should."""
    assert manifest.quantization is not None
    model = onnx.load(folder / manifest.graph.file, load_external_data=False)
    found = placement_findings(model, folder)
    use_integer_kernels(model)
    layers = {name: layer.precision for name, layer in manifest.quantization.layers.items()}
    del layers["embed"]  # a table that is looked up
    return found + kernel_findings(model, folder, layers)
