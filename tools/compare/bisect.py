"""Finds the first layer where two saved graphs part, on recorded steps.

One layer of one bundle is in memory at a time: its part of the graph is run on the residual streams
that the layer before has left, then its weights are let go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import ModelProto

from ...runtime.contract import LopaError
from .feeds import Feed
from .layer_graph import RESCALED, Cut, LayerGraph

# Relative errors (norm of the difference by norm of A's) that rounding alone does not reach.
TOLERANCES = {"fp32": 1e-4, "fp16": 1e-2}
COARSE_TOLERANCE = 0.1

_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"
Array = NDArray[Any]


@dataclass(frozen=True)
class Error:
    """Difference of two tensors over all steps; `relative` = |B - A| / |A| (2-norms)."""

    relative: float
    max_abs: float


@dataclass(frozen=True)
class CutError:
    """Error behind one part: `total` of B's own way there, `own` when it starts from A's stream."""

    name: str
    total: Error
    own: Error


@dataclass(frozen=True)
class PointError:
    """Error of one operation inside the layer, both sides starting from A's stream."""

    operation: str
    operator: str
    error: Error


@dataclass(frozen=True)
class Parting:
    """Where the sides part: the first part over the tolerance, and the first operation in it.

    `operation` is None when no operation of the part is over it by itself: errors of earlier layers
    have added up.
    """

    layer: str
    operation: str | None
    operator: str | None
    error: Error


@dataclass(frozen=True)
class BisectReport:
    """Errors along the layers up to where the sides part, and inside the layer they part in."""

    tolerance: float
    steps: int
    layers: tuple[CutError, ...]
    points: tuple[PointError, ...]
    parting: Parting | None


class _Sum:
    """Adds up an error over steps."""

    def __init__(self) -> None:
        self.difference = self.size = self.largest = 0.0

    def add(self, one: Array, two: Array) -> None:
        one, two = one.astype(np.float64), two.astype(np.float64)
        difference = np.abs(two - one)
        self.difference += float(np.square(difference).sum())
        self.size += float(np.square(one).sum())
        self.largest = float(np.maximum(self.largest, difference.max(initial=0.0)))

    @property
    def error(self) -> Error:
        relative = (self.difference / self.size) ** 0.5 if self.size else self.difference**0.5
        return Error(relative, self.largest)


def bisect(
    paths: tuple[Path, Path],
    feeds: Sequence[Feed],
    tolerance: float,
    threads: int = 0,
    rescaled: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> BisectReport:
    """Walk the layers of two graphs of the same model until they part by more than `tolerance`.

    With `rescaled`, operations that a quantised model may compute in other units are left out.
    """
    one, two = (LayerGraph(path) for path in paths)
    if [cut.name for cut in one.cuts] != [cut.name for cut in two.cuts]:
        raise LopaError(f"{paths[0]} and {paths[1]} do not have the same layers")
    streams: tuple[list[Array | None], list[Array | None]]
    streams = [None] * len(feeds), [None] * len(feeds)
    layers: list[CutError] = []
    for number, (first, second) in enumerate(zip(one.cuts, two.cuts, strict=True), 1):
        own = _Sum()
        reference = [left[0] for left in _run(one, first, feeds, streams[0], False, threads)]
        moved: list[Array | None] = []
        starts = [*streams[0], *streams[1]]
        results = _run(two, second, [*feeds, *feeds], starts, False, threads)
        for place, (result,) in enumerate(results):
            if place < len(feeds):
                own.add(reference[place], result)
            else:
                moved.append(result)
        total = _Sum()
        for a, b in zip(reference, moved, strict=True):
            assert b is not None
            total.add(a, b)
        layers.append(CutError(first.name, total.error, own.error))
        progress(number, len(one.cuts))
        if not total.error.relative <= tolerance:
            out = RESCALED if rescaled else ()
            points = _points(one, first, two, second, feeds, streams[0], threads, out)
            return _parted(tolerance, len(feeds), layers, points)
        streams = list(reference), moved
    return BisectReport(tolerance, len(feeds), tuple(layers), (), None)


def _parted(
    tolerance: float, steps: int, layers: Sequence[CutError], points: Sequence[PointError]
) -> BisectReport:
    last = layers[-1]
    over = [point for point in points if not point.error.relative <= tolerance]
    parting = Parting(
        last.name,
        over[0].operation if over else None,
        over[0].operator if over else None,
        over[0].error if over else last.total,
    )
    return BisectReport(tolerance, steps, tuple(layers), tuple(points), parting)


def _points(
    one: LayerGraph,
    first: Cut,
    two: LayerGraph,
    second: Cut,
    feeds: Sequence[Feed],
    starts: Sequence[Array | None],
    threads: int,
    left_out: Sequence[str],
) -> list[PointError]:
    """Errors of the operations that both sides have, in the order of computation.

    The sides are run step by step, so that the tensors of one step are held.
    """
    places = {point.operation: place for place, point in enumerate(second.points)}
    names = [point.operation for point in first.points if point.operation in places]
    sums = {name: _Sum() for name in names if name not in left_out}
    runs = (
        _run(one, first, feeds, starts, True, threads),
        _run(two, second, feeds, starts, True, threads),
    )
    for a, b in zip(*runs, strict=True):
        for point, tensor in zip(first.points, a, strict=True):
            if point.operation in sums:
                sums[point.operation].add(tensor, b[places[point.operation]])
    return [
        PointError(point.operation, point.operator, sums[point.operation].error)
        for point in first.points
        if point.operation in sums
    ]


def _run(
    graph: LayerGraph,
    cut: Cut,
    feeds: Sequence[Feed],
    starts: Sequence[Array | None],
    points: bool,
    threads: int,
) -> Iterator[list[Array]]:
    """Run a part on every feed from its start; yields its outputs per feed."""
    session = _open(graph.part(cut, points), graph.path, threads)
    names = [point.tensor for point in cut.points] if points else [cut.leaves]
    kinds = {item.name: item.type for item in session.get_inputs()}
    for feed, start in zip(feeds, starts, strict=True):
        inputs: dict[str, Array] = {name: feed[name] for name in kinds if name in feed}
        if cut.enters is not None:
            assert start is not None
            inputs[cut.enters] = start
        yield session.run(names, _cast(inputs, kinds))


def _cast(inputs: Mapping[str, Array], kinds: Mapping[str, str]) -> dict[str, Array]:
    """Give the recorded cache the dtype of the graph."""
    dtypes = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    return {
        name: array.astype(dtypes.get(kinds[name], array.dtype), copy=False)
        for name, array in inputs.items()
    }


def _open(model: ModelProto, path: Path, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    options.add_session_config_entry(_EXTERNAL_FOLDER, str(path.parent))
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
