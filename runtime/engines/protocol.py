"""What every engine library offers: a program, loaded once, and the states of its decodes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..contract import Instance
from .status import EngineStatus


@dataclass(frozen=True)
class StepInputs:
    """Writable host views of one step's inputs, shaped as the contract says for one instance."""

    input_ids: NDArray[np.int32]  # [B, W]
    position_ids: NDArray[np.int32]  # [B, W]
    isolation_mask: NDArray[np.bool_]  # [B * W, B * W]
    cache_mask: NDArray[np.bool_]  # [C]
    head_rows: NDArray[np.int32]  # [R]
    temperature: NDArray[np.float32]  # [1]


@dataclass(frozen=True)
class StepOutputs:
    """Host views of one step's head outputs, valid until the next run."""

    token_ids: NDArray[np.int32]  # [R, K]
    log_probs: NDArray[np.float32]  # [R, K]
    entropy: NDArray[np.float32]  # [R]


class DecodeState(Protocol):
    """What one decode owns: inputs, outputs, key/value cache, and how its steps are launched.

    It serves one thread at a time; states of one program may run at the same time. One step:
    `shape_for`, fill the views of `inputs`, `run`, then `commit` the rows of the winner (two-phase:
    keys and values of all branches are computed, only the winner's reach the cache).
    """

    @property
    def instances(self) -> tuple[Instance, ...]:
        """Shapes the engine can run."""

    def shape_for(self, step: Instance) -> Instance:
        """Return the shape to run `step` with; raises ContractError if no instance holds it."""

    def inputs(self, shape: Instance) -> StepInputs:
        """Return the input views of `shape`; the buffers are kept and reused."""

    def run(self, shape: Instance) -> StepOutputs:
        """Run one step on the current contents of `inputs(shape)` and the cache."""

    def commit(self, rows: NDArray[np.intp], slots: NDArray[np.intp]) -> None:
        """Copy window keys and values of flat rows [n] of the last run to cache slots [n]."""

    def reset(self) -> None:
        """Forget the cache contents."""

    def status(self) -> EngineStatus:
        """Return what the program says, and how each instance's steps are launched here."""


@runtime_checkable
class TwoPrecisionState(DecodeState, Protocol):
    """A state that can run a step by the fast graph of a bundle, too."""

    def run_fast(self, shape: Instance) -> StepOutputs:
        """Run one step as `run` does, with the same inputs, cache and outputs."""


@runtime_checkable
class StagingState(DecodeState, Protocol):
    """A state on a device, whose next inputs can be prepared while a step runs.

    A layout names all inputs of a step but tokens, head rows and temperature.
    """

    def while_running(self, work: Callable[[], None]) -> None:
        """Have `work` done once: in the next run, between its launch and the wait for it."""

    def stage(self, shape: Instance, layout: Hashable) -> StepInputs | None:
        """Return spare input views of `shape` to write `layout` into; None: it is there already."""

    def staged(self, shape: Instance, layout: Hashable) -> StepInputs | None:
        """Make views that hold `layout` the inputs of `shape`; None if it was not staged."""


class Program(Protocol):
    """A loaded engine: its library, its weights and its instances, which no decode changes.

    It may be used from many threads. Where the library cannot run two decodes at the same time,
    the states of a program take turns.
    """

    @property
    def instances(self) -> tuple[Instance, ...]:
        """Shapes the engine can run."""

    def decode_state(self) -> DecodeState:
        """Make a state for one more decode; raises LopaError where there is no memory for it."""

    def status(self) -> EngineStatus:
        """Return library, device, and memory: what is loaded once, and what each state adds."""
