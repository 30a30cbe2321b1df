"""One decode on ONNX Runtime: buffers of every shape it runs, bound once, and its cache.

On the CPU a step runs in its exact shape and the host arrays are the bound buffers. On CUDA every
step is padded to a static instance, buffers and cache live on the device at fixed addresses, and
each instance is captured as its own CUDA graph on its first run. Per step one copy sends the inputs
and one receives the head outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...contract import (
    CACHE_NAMES,
    HEAD_OUTPUT_NAMES,
    HOST_INPUT_NAMES,
    WINDOW_NAMES,
    ContractError,
    Instance,
    LopaError,
    TensorSpec,
    named,
    smallest_fit,
)
from ..protocol import StepInputs, StepOutputs
from ..status import EngineStatus
from .buffers import Block, Buffers, DeviceBuffers, HostBuffers, Pair, Slot
from .cuda_graphs import SessionGraphs
from .library import FATAL

if TYPE_CHECKING:
    from .program import OnnxRuntimeProgram

# Granularity of exact shapes on the CPU: few distinct shapes, little padding.
CONTEXT_STEP = 64
ROW_STEP = 8
KEPT_SHAPES = 512  # exact shapes whose bindings are kept for reuse


@dataclass(frozen=True)
class _Bound:
    """One shape with its bindings, its tensors, and the views the decoder reads and writes.

    The bindings hold addresses alone: what lies there lives as long as this.
    """

    generation: int  # of the buffers
    bindings: tuple[Any, ...]  # of the step graph, and of the fast one where there is one
    run_options: Any
    sent: Block
    received: Block
    windows: Pair
    inputs: StepInputs
    outputs: StepOutputs


class OnnxRuntimeState:
    """One decode on the sessions of a program (see `protocol.DecodeState`)."""

    def __init__(self, program: OnnxRuntimeProgram, graphs: SessionGraphs | None = None) -> None:
        """`graphs` says how steps are launched on a provider that captures them."""
        self._program, self._graphs = program, graphs
        self._lock = program.lock
        self._instances = program.instances
        self._limit = max(item.context for item in self._instances)
        self._buffers: Buffers = HostBuffers()
        if program.commit_session is not None:
            self._buffers = DeviceBuffers(program.library, program.provider, program.commit_session)
        self._bound: dict[Instance, _Bound] = {}
        self._caches: dict[str, Slot] = {}
        self._context = 0
        self._last: Instance | None = None

    @property
    def instances(self) -> tuple[Instance, ...]:
        """Shapes the engine can run."""
        return self._instances

    def shape_for(self, step: Instance) -> Instance:
        """Pad `step` to an instance, or to the next cheap exact shape on the CPU."""
        step = replace(step, context=max(step.context, self._context))
        instance = smallest_fit(self._instances, step)
        if instance is None:
            known = ", ".join(item.name for item in self._instances)
            raise ContractError(f"no instance holds a step of {step.name}; the bundle has {known}")
        if not self._program.exact:
            return instance
        return replace(
            step,
            context=min(_round_up(step.context, CONTEXT_STEP), self._limit),
            rows=min(_round_up(step.rows, ROW_STEP), step.window_rows),
        )

    def inputs(self, shape: Instance) -> StepInputs:
        """Return the input views of `shape`, made on first use."""
        with self._lock:
            self._reserve(shape.context)
            bound = self._bound.get(shape)
            if bound is None or bound.generation != self._buffers.generation:
                # Static shapes are captured as they are.
                if self._program.exact and len(self._bound) >= KEPT_SHAPES:
                    self._bound.clear()
                bound = self._bound[shape] = self._bind(shape)
        return bound.inputs

    def run(self, shape: Instance) -> StepOutputs:
        """Run one step; head outputs are host views valid until the next run."""
        return self._run(shape, 0)

    def run_fast(self, shape: Instance) -> StepOutputs:
        """Run one step by the fast graph; raises LopaError where it is not open."""
        if len(self._program.sessions) == 1:
            raise LopaError(
                "the fast graph of a bundle runs on the CPU; use --provider cpu, or "
                "--precision-policy full"
            )
        return self._run(shape, 1)

    def commit(self, rows: NDArray[np.intp], slots: NDArray[np.intp]) -> None:
        """Copy window rows of the last run to cache slots."""
        windows = self._windows()
        keys, values = (self._caches[name] for name in CACHE_NAMES)
        with self._lock:
            self._buffers.commit((keys, values), windows, rows, slots)

    def reset(self) -> None:
        """Forget the cache contents; the buffers stay."""
        self._last = None
        self._context = 0

    def window(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Keys and values [L, H, N, D] of the last run, for inspection."""
        keys, values = self._windows()
        return keys.read(), values.read()

    def cache(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Keys and values [L, H, C, D] of the cache as it is laid out now, for inspection."""
        keys, values = (self._caches[name] for name in CACHE_NAMES)
        return keys.read(), values.read()

    def load_cache(self, keys: NDArray[Any], values: NDArray[Any]) -> None:
        """Replace the cache, as it is laid out now, to run a recorded step again."""
        for name, contents in zip(CACHE_NAMES, (keys, values), strict=True):
            self._caches[name].write(contents)

    def status(self) -> EngineStatus:
        """Return what the program says, and how each instance's steps are launched here."""
        graphs = () if self._graphs is None else self._graphs.status()
        return replace(self._program.status(), graphs=graphs)

    def _run(self, shape: Instance, graph: int) -> StepOutputs:
        bound = self._bound[shape]
        session, binding = self._program.sessions[graph], bound.bindings[graph]
        with self._lock:
            bound.sent.upload()
            try:
                if self._graphs is None:
                    session.run_with_iobinding(binding, bound.run_options)
                else:
                    self._graphs.run(shape, session, binding, bound.run_options)
            except LopaError:
                raise
            except Exception as error:  # the library raises its own undocumented classes
                raise self._program.step_error(graph, error) from error
            bound.received.download()
        self._last = shape
        return bound.outputs

    def _windows(self) -> Pair:
        if self._last is None:
            raise ContractError("no step has run since the last reset")
        return self._bound[self._last].windows

    def _reserve(self, context: int) -> None:
        """Grow the cache to `context` slots, keeping its contents."""
        if context <= self._context:
            return
        manifest = self._program.manifest
        info, dtype = manifest.model, manifest.model_dtype
        shape = (info.layers, info.kv_heads, context, info.head_dim)
        grown = {name: self._buffers.cache(TensorSpec(name, dtype, shape)) for name in CACHE_NAMES}
        if self._context:
            for name in CACHE_NAMES:
                self._buffers.grow(self._caches[name], grown[name])
        self._caches, self._context = grown, context

    def _bind(self, shape: Instance) -> _Bound:
        inputs, outputs = self._program.manifest.tensor_specs(shape)
        sent = self._buffers.block(named(inputs, HOST_INPUT_NAMES))
        received = self._buffers.block(named(outputs, HEAD_OUTPUT_NAMES))
        keys, values = (self._buffers.window(spec) for spec in named(outputs, WINDOW_NAMES))
        slots = {**self._caches, **dict(zip(WINDOW_NAMES, (keys, values), strict=True))}
        addresses = {name: slot.address for name, slot in slots.items()}
        addresses |= sent.addresses | received.addresses
        bindings = []
        for session in self._program.sessions:  # all on the same tensors
            binding = session.io_binding()
            for specs, bind in ((inputs, binding.bind_input), (outputs, binding.bind_output)):
                for spec in specs:
                    dtype, sizes = np.dtype(spec.dtype), list(spec.shape)
                    bind(spec.name, self._program.provider, 0, dtype, sizes, addresses[spec.name])
            bindings.append(binding)
        run_options = self._program.library.RunOptions()
        run_options.log_severity_level = FATAL
        if self._graphs is not None:
            self._graphs.mark(shape, run_options)
        return _Bound(
            self._buffers.generation,
            tuple(bindings),
            run_options,
            sent,
            received,
            (keys, values),
            StepInputs(**sent.views),
            StepOutputs(**received.views),
        )


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
