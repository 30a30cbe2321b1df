"""One graph file and one data file, whatever the size of the tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from lopa.export.graph_file import ALIGNMENT, EXTERNAL_BYTES, write_graph
from lopa.export.source import ModelSource, open_source
from lopa.export.spec import parameter_shapes
from onnx import TensorProto, numpy_helper


@pytest.fixture(scope="session")
def source(tiny_checkpoint: Path) -> ModelSource:
    return open_source(tiny_checkpoint, candidates=16)


def _external(folder: Path) -> dict[str, dict[str, str]]:
    graph = onnx.load(folder / "step.onnx", load_external_data=False).graph
    return {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data}
        for tensor in graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
    }


def test_one_relative_aligned_data_file(tiny_model: Path, source: ModelSource) -> None:
    found = _external(tiny_model)
    shapes = parameter_shapes(source.spec)
    assert shapes.keys() <= found.keys()
    assert {entry["location"] for entry in found.values()} == {"weights.data"}
    spans = sorted((int(e["offset"]), int(e["length"])) for e in found.values())
    assert all(offset % ALIGNMENT == 0 for offset, _ in spans)
    ends = [offset + length for offset, length in spans]
    assert all(end <= start for end, (start, _) in zip(ends, spans[1:], strict=False))
    assert ends[-1] == (tiny_model / "weights.data").stat().st_size
    lengths = {name: int(found[name]["length"]) for name in shapes}
    assert lengths == {name: int(np.prod(shape)) * 4 for name, shape in shapes.items()}


def test_small_constants_stay_in_the_graph_file(tiny_model: Path, source: ModelSource) -> None:
    """Axes and shapes are needed to parse the graph; parsers reject them in external data."""
    graph = onnx.load(tiny_model / "step.onnx", load_external_data=False).graph
    parameters, external = parameter_shapes(source.spec), _external(tiny_model)
    inline = [tensor for tensor in graph.initializer if tensor.name not in external]
    assert inline
    for tensor in inline:
        assert numpy_helper.to_array(tensor).nbytes < EXTERNAL_BYTES
    integers = {t.name for t in graph.initializer if t.data_type == TensorProto.INT64}
    assert integers
    assert not integers & external.keys()
    assert all(
        name in parameters or int(entry["length"]) >= EXTERNAL_BYTES
        for name, entry in external.items()
    )


def test_stored_parameters_are_those_of_the_checkpoint(
    tiny_model: Path, source: ModelSource
) -> None:
    graph = onnx.load(tiny_model / "step.onnx").graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for name in parameter_shapes(source.spec):
        assert np.array_equal(stored[name], source.weights.read(name, torch.float32).numpy()), name


@pytest.mark.parametrize("limit", [1, 1 << 30])
def test_any_external_limit_loads_and_gives_the_same(
    tiny_model: Path, tmp_path: Path, source: ModelSource, limit: int
) -> None:
    """A lowered limit stands for a model whose constants are large; parameters always go out."""
    names = write_graph(
        tmp_path,
        _traced(tiny_model),
        parameter_shapes(source.spec),
        source.weights.read,
        external_bytes=limit,
    )
    assert sorted(names) == sorted(path.name for path in tmp_path.iterdir())
    external = _external(tmp_path)
    if limit == 1:
        graph = onnx.load(tmp_path / "step.onnx", load_external_data=False).graph
        floats = {t.name for t in graph.initializer if t.data_type == TensorProto.FLOAT}
        assert external.keys() == floats > parameter_shapes(source.spec).keys()
    else:
        assert external.keys() == parameter_shapes(source.spec).keys()
    onnx.checker.check_model(tmp_path / "step.onnx")
    results = [
        onnxruntime.InferenceSession(folder / "step.onnx", providers=["CPUExecutionProvider"]).run(
            None, _feeds()
        )
        for folder in (tiny_model, tmp_path)
    ]
    for one, two in zip(*results, strict=True):
        assert np.array_equal(one, two)


def _traced(folder: Path) -> ir.Model:
    """The graph of a finished export with its data, in place of another trace."""
    model = ir.load(folder / "step.onnx")
    ir.external_data.load_to_model(model)
    return model


def _feeds() -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    return {
        "input_ids": np.arange(6, dtype=np.int32)[None],
        "position_ids": np.arange(6, dtype=np.int32)[None],
        "isolation_mask": np.ones((6, 6), np.bool_),
        "cache_mask": np.zeros(2, np.bool_),
        "cache_keys": np.zeros((2, 2, 2, 16), np.float32),
        "cache_values": np.zeros((2, 2, 2, 16), np.float32),
        "head_rows": np.arange(6, dtype=np.int32),
        "temperature": np.ones(1, np.float32),
    }


def test_progress_counts_bytes(tiny_model: Path, tmp_path: Path, source: ModelSource) -> None:
    seen: list[tuple[int, int]] = []
    write_graph(
        tmp_path,
        _traced(tiny_model),
        parameter_shapes(source.spec),
        source.weights.read,
        lambda done, total: seen.append((done, total)),
    )
    size = (tmp_path / "weights.data").stat().st_size
    assert {total for _, total in seen} == {size}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (size, size)
