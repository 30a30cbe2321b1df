"""Inputs of decode steps, kept on disk: what a model really sees while it decodes.

A step is described by its stratum: whether the cache was empty, how many branches ran, and how much
of the window was masked. Typical steps are drawn evenly from decodes; they are what is measured.
Rare ones are the first of the strata met least so far; they widen the ranges.
"""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..runtime.contract import INPUT_NAMES, Instance
from ..runtime.engines.onnxruntime.state import OnnxRuntimeState
from ..runtime.engines.protocol import StepInputs, StepOutputs
from ..runtime.engines.status import EngineStatus
from ..runtime.staging import write_whole

MASK_BINS = 10
TYPICAL, RARE = "typical", "rare"
STATE_SUFFIX = ".npz"

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
    """Recorded steps in a folder, in the order of their names: kind, prompt, step, stratum."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def names(self, kind: str = "") -> list[str]:
        """Names of all steps, or of those of a kind."""
        found = self.folder.glob(f"{kind}*{STATE_SUFFIX}")
        return sorted(path.name.removesuffix(STATE_SUFFIX) for path in found)

    def load(self, name: str) -> Feeds:
        """Read the inputs of one step."""
        with np.load(self.folder / (name + STATE_SUFFIX)) as file:
            return {key: file[key] for key in INPUT_NAMES}

    def strata(self, kind: str = "") -> Counter[str]:
        """How many steps of each stratum there are."""
        return Counter(name.split("-", 3)[3] for name in self.names(kind))

    def save(self, name: str, feeds: Feeds) -> None:
        """Write one step."""
        file = io.BytesIO()
        np.savez_compressed(file, **feeds)  # type: ignore[arg-type]
        write_whole(self.folder / (name + STATE_SUFFIX), file.getvalue())


@dataclass(frozen=True)
class States:
    """Steps that are read one at a time, as often as they are gone through."""

    folder: StateFolder
    names: tuple[str, ...]

    def __iter__(self) -> Iterator[Feeds]:
        return map(self.folder.load, self.names)

    def __len__(self) -> int:
        return len(self.names)

    def spread(self, count: int) -> States:
        """About `count` of them, evenly spaced."""
        chosen = {index * len(self.names) // count for index in range(count)}
        return States(self.folder, tuple(self.names[index] for index in sorted(chosen)))


def copy_feeds(inputs: StepInputs, cache: tuple[NDArray[Any], NDArray[Any]]) -> Feeds:
    """Copy the inputs of one step and its cache [L, H, C, D]; slots that it does not see are zero.

    What these hold is left over from earlier prompts.
    """
    seen = inputs.cache_mask
    keys, values = (
        np.where(seen[:, None], tensor[:, :, : len(seen)], np.zeros((), tensor.dtype))
        for tensor in cache
    )
    arrays = {name: array.copy() for name, array in vars(inputs).items()}
    arrays |= {"cache_keys": keys, "cache_values": values}
    return {name: arrays[name] for name in INPUT_NAMES}


class RecordingEngine:
    """An engine that writes down the inputs of some of its steps, a few of them in memory."""

    def __init__(self, engine: OnnxRuntimeState, mask_token: int, states: StateFolder) -> None:
        self.engine, self.mask_token, self.states = engine, mask_token, states
        self.start(TYPICAL, 0, 0)

    def start(self, kind: str, prompt: int, wanted: int) -> None:
        """Begin a decode of which `wanted` steps are recorded."""
        self.kind, self.prompt, self.wanted = kind, prompt, wanted
        self._before = self.states.strata(RARE)
        self._random = random.Random(prompt)  # the same steps in every run
        self._step = 0
        self._seen: set[Stratum] = set()
        self._kept: list[tuple[tuple[Any, ...], str, Feeds]] = []  # rank, name, inputs

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
        """Run one step and remember its inputs if it ranks among the wanted ones."""
        inputs = self.engine.inputs(shape)
        live = live_rows({"isolation_mask": inputs.isolation_mask})
        masked = float((inputs.input_ids.reshape(-1)[live] == self.mask_token).mean())
        stratum = Stratum(
            not inputs.cache_mask.any(),
            shape.branches,
            min(int(masked * MASK_BINS), MASK_BINS - 1),
        )
        rank: tuple[Any, ...] = (self._random.random(),)
        if self.kind == RARE:
            rank = (self._before[stratum.label], not stratum.prefill, stratum)
        full = len(self._kept) == self.wanted
        repeated = self.kind == RARE and stratum in self._seen
        if self.wanted and not repeated and not (full and rank > self._kept[-1][0]):
            name = f"{self.kind}-{self.prompt:05d}-{self._step:03d}-{stratum.label}"
            del self._kept[self.wanted - 1 :]
            self._kept.append((rank, name, copy_feeds(inputs, self.engine.cache())))
            self._kept.sort(key=lambda item: item[0])
        self._seen.add(stratum)
        self._step += 1
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

    def save(self) -> None:
        """Write the remembered steps."""
        for _, name, feeds in self._kept:
            self.states.save(name, feeds)
        self._kept.clear()
