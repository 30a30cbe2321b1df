"""The tensors of an exported graph, held against the manifest of its folder."""

from __future__ import annotations

from pathlib import Path

import onnx

from ..runtime.contract import Instance, LopaError
from ..runtime.engine_check import ReportedTensor, check_tensors
from ..runtime.manifest import MODEL_FILE, ModelManifest, step_specs

# Sizes of the symbolic dimensions do not matter: these stand for any.
ANY_SHAPE = Instance(2, 3, 5, 4)


def check_model_graph(folder: Path, manifest: ModelManifest) -> None:
    """Raise LopaError unless the graph of `folder` takes and gives what `model.json` says."""
    path = folder / manifest.graph.file
    try:
        graph = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf raises its own classes
        raise LopaError(f"{path} is no ONNX graph ({error}); export it again") from None
    inputs, outputs = step_specs(manifest, ANY_SHAPE)
    tensors = graph_tensors(graph)
    check_tensors(f"{path} of {MODEL_FILE}", tensors, {ANY_SHAPE.name: (*inputs, *outputs)})


def graph_tensors(model: onnx.ModelProto) -> list[ReportedTensor]:
    """Inputs and outputs of a graph; symbolic dimensions are of any size."""
    return [
        ReportedTensor(
            value.name,
            _NUMPY_NAMES.get(kind := _kind(value), kind),
            tuple(
                dim.dim_value if dim.HasField("dim_value") else None
                for dim in value.type.tensor_type.shape.dim
            ),
        )
        for value in (*model.graph.input, *model.graph.output)
    ]


_NUMPY_NAMES = {"float": "float32", "double": "float64"}


def _kind(value: onnx.ValueInfoProto) -> str:
    return str(onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)).lower()
