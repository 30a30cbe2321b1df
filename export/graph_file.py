"""Write a traced graph: `step.onnx` plus one external data file, one tensor in memory at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import torch

GRAPH_FILE = "step.onnx"
WEIGHTS_FILE = "weights.data"
ALIGNMENT = 4096  # page size: every tensor can be memory-mapped on its own
EXTERNAL_BYTES = 1024  # smaller tensors stay inside the graph file


def write_graph(
    folder: Path,
    model: ir.Model,
    parameters: dict[str, tuple[int, ...]],
    read: Callable[[str, torch.dtype], torch.Tensor],
    progress: Callable[[int, int], None] = lambda done, total: None,
    external_bytes: int = EXTERNAL_BYTES,
) -> list[str]:
    """Write `model` into `folder`; `read(name, dtype)` gives each parameter's data.

    Shape and axis constants (int64) stay in the graph file whatever their size: parsers need their
    values. `progress` is called with bytes written and bytes in all. Returns the file names.
    """
    offset = 0
    pieces: list[tuple[str, ir.TensorProtocol]] = []
    for name, value in sorted(model.graph.initializers.items()):
        tensor = value.const_value
        assert tensor is not None
        if name in parameters:
            assert tuple(tensor.shape.numpy()) == parameters[name], name
        elif tensor.nbytes < external_bytes or tensor.dtype is ir.DataType.INT64:
            continue
        offset = -(-offset // ALIGNMENT) * ALIGNMENT
        pieces.append((name, tensor))
        value.const_value = ir.ExternalTensor(
            WEIGHTS_FILE,
            offset,
            tensor.nbytes,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=name,
        )
        offset += tensor.nbytes
    with (folder / WEIGHTS_FILE).open("wb") as file:
        for name, tensor in pieces:
            file.seek(-(-file.tell() // ALIGNMENT) * ALIGNMENT)
            if name in parameters:
                data = read(name, _torch_dtype(tensor)).contiguous()
                assert tuple(data.shape) == parameters[name], name
                file.write(data.view(torch.uint8).numpy().data)
            else:
                file.write(tensor.tobytes())
            progress(file.tell(), offset)
        file.flush()
        os.fsync(file.fileno())
    ir.save(model, folder / GRAPH_FILE)
    return [GRAPH_FILE, WEIGHTS_FILE]


def _torch_dtype(tensor: ir.TensorProtocol) -> torch.dtype:
    return {
        ir.DataType.FLOAT: torch.float32,
        ir.DataType.FLOAT16: torch.float16,
        ir.DataType.BFLOAT16: torch.bfloat16,
    }[tensor.dtype]
