"""Inputs of decode steps, kept on disk: what a model really sees while it decodes.

A step is described by its stratum: whether the cache was empty, how many branches ran, and how much
of the window was masked. Of every prompt the steps of the rarest strata are kept.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..runtime.contract import INPUT_NAMES, Instance
from ..runtime.engines.onnxruntime import OnnxRuntimeEngine
from ..runtime.engines.protocol import StepInputs, StepOutputs
from ..runtime.engines.status import EngineStatus

MASK_BINS = 10
_SUFFIX = ".npz"

Feeds = dict[str, NDArray[Any]]


@dataclass(frozen=True, order=True)
class Stratum:
    """A kind of step; `masked` counts tenths of the window's rows."""

    prefill: bool
    branches: int
    masked: int

    @property
    def label(self) -> str:
        """For example ``cached-b5-m3``."""
        return f"{'prefill' if self.prefill else 'cached'}-b{self.branches}-m{self.masked}"


def live_rows(feeds: Feeds) -> NDArray[np.bool_]:
    """Rows [B * W] that are not padding: padded rows see only themselves."""
    live = np.asarray(feeds["isolation_mask"].sum(1) > 1)
    return live if live.any() else np.ones_like(live)


def asked_rows(feeds: Feeds) -> NDArray[np.intp]:
    """Indices of head rows that differ: the padding of `head_rows` repeats row 0."""
    return np.unique(feeds["head_rows"], return_index=True)[1]


class StateFolder:
    """Recorded steps in a folder, in the order of their names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """Names of all steps; the part before the dash is the prompt's number."""
        return sorted(path.name.removesuffix(_SUFFIX) for path in self.folder.glob(f"*{_SUFFIX}"))

    def load(self, name: str) -> Feeds:
        """Read the inputs of one step."""
        with np.load(self.folder / (name + _SUFFIX)) as file:
            return {key: file[key] for key in INPUT_NAMES}

    def subset(self, count: int) -> States:
        """About `count` steps, spread evenly over all."""
        names = self.names()
        chosen = {index * len(names) // count for index in range(count)}
        return States(self, tuple(names[index] for index in sorted(chosen)))

    def strata(self) -> Counter[str]:
        """How many steps of each stratum there are."""
        return Counter(name.split("-", 2)[2] for name in self.names())

    def save(self, name: str, feeds: Feeds) -> None:
        """Write one step."""
        with (self.folder / f"{name}.draft").open("wb") as file:
            np.savez_compressed(file, **feeds)  # type: ignore[arg-type]
        os.replace(self.folder / f"{name}.draft", self.folder / (name + _SUFFIX))


@dataclass(frozen=True)
class States:
    """Steps that are read one at a time, as often as they are gone through."""

    folder: StateFolder
    names: tuple[str, ...]

    def __iter__(self) -> Iterator[Feeds]:
        return map(self.folder.load, self.names)

    def __len__(self) -> int:
        return len(self.names)


class RecordingEngine:
    """An engine that writes down the inputs of its steps, at most one per stratum and prompt."""

    def __init__(self, engine: OnnxRuntimeEngine, mask_token: int, states: StateFolder) -> None:
        self.engine, self.mask_token, self.states = engine, mask_token, states
        self.prompt = 0
        self._seen: dict[Stratum, tuple[str, Feeds]] = {}

    @property
    def instances(self) -> tuple[Instance, ...]:
        """Shapes the engine can run."""
        return self.engine.instances

    def shape_for(self, step: Instance) -> Instance:
        """Return the shape to run `step` with."""
        return self.engine.shape_for(step)

    def inputs(self, shape: Instance) -> StepInputs:
        """Return the input views of `shape`."""
        return self.engine.inputs(shape)

    def run(self, shape: Instance) -> StepOutputs:
        """Run one step and remember its inputs."""
        inputs = self.engine.inputs(shape)
        keys, values = self.engine.cache()
        live = live_rows({"isolation_mask": inputs.isolation_mask})
        masked = float((inputs.input_ids.reshape(-1)[live] == self.mask_token).mean())
        stratum = Stratum(
            not inputs.cache_mask.any(),
            shape.branches,
            min(int(masked * MASK_BINS), MASK_BINS - 1),
        )
        if stratum not in self._seen:
            kept = inputs.cache_mask[:, None]
            feeds = {name: getattr(inputs, name).copy() for name in vars(inputs)}
            # Unused slots hold leftovers of earlier prompts.
            feeds |= {"cache_keys": keys * kept, "cache_values": values * kept}
            self._seen[stratum] = (f"{self.prompt:05d}-{len(self._seen):03d}", feeds)
        return self.engine.run(shape)

    def commit(self, rows: NDArray[np.intp], slots: NDArray[np.intp]) -> None:
        """Copy window rows of the last run to cache slots."""
        self.engine.commit(rows, slots)

    def reset(self) -> None:
        """Forget the cache contents."""
        self.engine.reset()

    def status(self) -> EngineStatus:
        """What the engine says of itself."""
        return self.engine.status()

    def keep(self, count: int) -> None:
        """Save the `count` steps of the prompt whose strata are rarest so far; forget the rest."""
        before = self.states.strata()
        rarest = sorted(self._seen, key=lambda item: (before[item.label], not item.prefill, item))[
            :count
        ]
        for stratum in rarest:
            name, feeds = self._seen[stratum]
            self.states.save(f"{name}-{stratum.label}", feeds)
        self._seen.clear()
