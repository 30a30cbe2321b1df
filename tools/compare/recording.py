"""Records the inputs of real decode steps, evenly spread and bounded in number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...calibration.states import copy_feeds
from ...runtime.contract import Instance
from ...runtime.engines.protocol import DecodeState, StepInputs, StepOutputs, TwoPrecisionState
from ...runtime.engines.status import EngineStatus
from .feeds import Feed


class ReplayEngine(DecodeState, Protocol):
    """An engine whose cache and window can be read, and whose cache can be replaced."""

    def window(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Keys and values [L, H, N, D] of the last run."""

    def cache(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Keys and values [L, H, C, D] of the cache as it is laid out now."""

    def load_cache(self, keys: NDArray[Any], values: NDArray[Any]) -> None:
        """Replace the cache as it is laid out now."""


@dataclass(frozen=True)
class Step:
    """Inputs of one step, and whether the bundle's fast graph ran it."""

    feed: Feed
    fast: bool = False


class Spread:
    """Keeps at most `limit` of a stream of unknown length, evenly spread over it.

    Up to twice as many are held; when these are full, every second goes and the stride doubles.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._stride, self._seen = limit, 1, 0
        self._kept: list[Step] = []

    @property
    def due(self) -> bool:
        """Whether the next one will be kept."""
        return self._seen % self._stride == 0

    def skip(self) -> None:
        """Count one that is not due."""
        self._seen += 1

    def add(self, step: Step) -> None:
        """Keep one that is due."""
        self._seen += 1
        self._kept.append(step)
        if len(self._kept) == 2 * self._limit:
            self._kept = self._kept[::2]
            self._stride *= 2

    @property
    def chosen(self) -> list[Step]:
        """At most `limit` of what was kept, the first and the last included."""
        count = len(self._kept)
        if count <= self._limit:
            return list(self._kept)
        places = np.linspace(0, count - 1, self._limit).round().astype(int)
        return [self._kept[place] for place in places]


class RecordingEngine:
    """Passes every call to an engine and copies the inputs of its runs (see `DecodeState`)."""

    def __init__(self, engine: ReplayEngine, spread: Spread) -> None:
        self._engine, self._spread = engine, spread

    @property
    def instances(self) -> tuple[Instance, ...]:
        """Shapes the engine can run."""
        return self._engine.instances

    def shape_for(self, step: Instance) -> Instance:
        """Return the shape to run `step` with."""
        return self._engine.shape_for(step)

    def inputs(self, shape: Instance) -> StepInputs:
        """Return the input views of `shape`."""
        return self._engine.inputs(shape)

    def run(self, shape: Instance) -> StepOutputs:
        """Run one step, after its inputs were copied if they are to be kept."""
        self._record(shape, fast=False)
        return self._engine.run(shape)

    def run_fast(self, shape: Instance) -> StepOutputs:
        """Do the same by the fast graph of an engine that has one."""
        assert isinstance(self._engine, TwoPrecisionState)
        self._record(shape, fast=True)
        return self._engine.run_fast(shape)

    def commit(self, rows: NDArray[np.intp], slots: NDArray[np.intp]) -> None:
        """Copy window rows of the last run to cache slots."""
        self._engine.commit(rows, slots)

    def reset(self) -> None:
        """Forget the cache contents."""
        self._engine.reset()

    def status(self) -> EngineStatus:
        """Return what the engine says about itself."""
        return self._engine.status()

    def _record(self, shape: Instance, fast: bool) -> None:
        if self._spread.due:
            inputs, cache = self._engine.inputs(shape), self._engine.cache()
            self._spread.add(Step(copy_feeds(inputs, cache), fast))
        else:
            self._spread.skip()
