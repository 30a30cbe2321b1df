"""The external data file of a rewritten graph, written one tensor at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

ALIGNMENT = 4096  # page size: every tensor can be memory-mapped on its own
EXTERNAL_BYTES = 1024  # smaller tensors stay inside the graph file

Array = NDArray[Any]


@dataclass(frozen=True)
class Piece:
    """Stored tensors that are made together: their headers, and what makes their data.

    `source` is the tensor of the original graph that a piece repeats unchanged.
    """

    headers: tuple[TensorProto, ...]
    make: Callable[[], list[Array]]
    source: TensorProto | None = None


def tensor_header(name: str, element: int, shape: Sequence[int]) -> TensorProto:
    """A tensor without data."""
    return TensorProto(name=name, data_type=element, dims=list(shape))


def pack_int4(integers: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Pack integers from -8 to 7 two to a byte, the first in the low half."""
    flat = integers.reshape(-1)
    flat = np.append(flat, np.zeros(flat.size % 2, np.int8)).astype(np.uint8) & 15
    return np.asarray(flat[::2] | flat[1::2] << 4, np.uint8)


def write_pieces(
    model: onnx.ModelProto,
    pieces: Sequence[Piece],
    graph_file: Path,
    data_file: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Write the pieces to `data_file`, add them to `model` and write it to `graph_file`.

    Integers of 64 bits are shapes and axes, whose values parsers need: they stay in the graph.
    """
    with data_file.open("wb") as file:
        for index, piece in enumerate(pieces):
            for header, array in zip(piece.headers, piece.make(), strict=True):
                if header.data_type == TensorProto.INT64 or array.nbytes < EXTERNAL_BYTES:
                    header.raw_data = np.ascontiguousarray(array).tobytes()
                else:
                    append_tensor(file, header, data_file.name, [array])
                model.graph.initializer.append(header)
            progress(index + 1, len(pieces))
        file.flush()
        os.fsync(file.fileno())
    onnx.save(model, graph_file)


def append_tensor(
    file: BinaryIO, tensor: TensorProto, location: str, parts: Iterable[Array]
) -> None:
    """Append the parts of one tensor's data to `file`, page-aligned, and point `tensor` at them."""
    start = -(-file.tell() // ALIGNMENT) * ALIGNMENT
    file.seek(start)
    for part in parts:
        file.write(np.ascontiguousarray(part).tobytes())
    tensor.ClearField("raw_data")
    del tensor.external_data[:]
    tensor.data_location = TensorProto.EXTERNAL
    entries = {"location": location, "offset": start, "length": file.tell() - start}
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))


def inline_pieces(model: onnx.ModelProto, pieces: Sequence[Piece]) -> None:
    """Add the pieces to `model` itself; unchanged tensors keep pointing at their own file."""
    for piece in pieces:
        if piece.source is not None:
            model.graph.initializer.append(piece.source)
            continue
        for header, array in zip(piece.headers, piece.make(), strict=True):
            header.raw_data = np.ascontiguousarray(array).tobytes()
            model.graph.initializer.append(header)
