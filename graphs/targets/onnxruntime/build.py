"""ONNX Runtime target: the symbolic graph is the engine, one copy for all instances.

Only routed experts and quantised products are changed: they become the library's own operators.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from ....runtime.contract import Instance, LopaError
from ....runtime.engine_info import EngineInfo
from ....runtime.engines.onnxruntime.buffers import COMMIT_FILE
from ....runtime.engines.onnxruntime.library import load_library
from ....runtime.manifest import ModelManifest
from ..listener import BuildListener
from .experts import fuse_experts, has_experts
from .integers import use_integer_kernels


def check_build(target: str, precision: str, settings: None) -> None:
    """Raise LopaError if the library is absent."""
    load_library()


def build_engine(
    target: str,
    model_folder: Path,
    manifest: ModelManifest,
    instances: tuple[Instance, ...],
    stage: Path,
    settings: None,
    listener: BuildListener,
) -> tuple[EngineInfo, list[str]]:
    """Write the engine files into `stage` and load them once; returns record and file names."""
    library = load_library()
    names = [*write_step(model_folder, manifest, stage), COMMIT_FILE]
    onnx.save(commit_graph(manifest), stage / COMMIT_FILE)
    _try_load(library, stage / manifest.graph.file)
    return EngineInfo(target, dynamic=True, versions={"onnxruntime": library.__version__}), names


def build_fast(
    model_folder: Path, manifest: ModelManifest, instances: tuple[Instance, ...], to: Path
) -> list[str]:
    """Write the step graph alone and load it once: commits do not depend on the precision."""
    names = write_step(model_folder, manifest, to)
    _try_load(load_library(), to / manifest.graph.file)
    return names


def write_step(model_folder: Path, manifest: ModelManifest, stage: Path) -> list[str]:
    """Write the step graph with the library's own operators; returns file names, graph first."""
    names = [manifest.graph.file, *(name for name in manifest.files if name.endswith(".data"))]
    graph = onnx.load(model_folder / manifest.graph.file, load_external_data=False)
    quantized = use_integer_kernels(graph)
    if has_experts(graph):
        (data,) = (name for name in names if name.endswith(".data"))
        fuse_experts(graph, model_folder, stage / manifest.graph.file, stage / data)
    else:
        for name in names:
            shutil.copyfile(model_folder / name, stage / name)
        if quantized:
            onnx.save(graph, stage / manifest.graph.file)
    return names


def _try_load(library: Any, graph: Path) -> None:
    try:
        options = library.SessionOptions()
        options.log_severity_level = 3
        library.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the library raises its own undocumented classes
        raise LopaError(f"onnxruntime cannot load the graph: {error}") from error


def commit_graph(manifest: ModelManifest) -> onnx.ModelProto:
    """The graph that commits window rows to a cache on a device.

    committed[:, :, c] = concat(cache, window)[:, :, source[c]]; its output may be bound to the
    cache itself, since the gather reads only the concatenated copy.
    """
    info = manifest.model
    element = helper.np_dtype_to_tensor_dtype(np.dtype(manifest.model_dtype))
    shape = [info.layers, info.kv_heads, None, info.head_dim]

    def tensor(name: str, slots: str) -> onnx.ValueInfoProto:
        dims = [slots if dim is None else dim for dim in shape]
        return helper.make_tensor_value_info(name, element, dims)

    graph = helper.make_graph(
        [
            helper.make_node("Concat", ["cache", "window"], ["all"], axis=2),
            helper.make_node("Gather", ["all", "source"], ["committed"], axis=2),
        ],
        "commit",
        [
            tensor("cache", "context"),
            tensor("window", "window_rows"),
            helper.make_tensor_value_info("source", TensorProto.INT64, ["context"]),
        ],
        [tensor("committed", "context")],
    )
    opsets = [helper.make_opsetid("", manifest.graph.opset)]
    return helper.make_model(graph, producer_name="lopa", opset_imports=opsets, ir_version=8)
