"""One decode on TensorRT: an execution context and a CUDA graph per instance, and their memory.

Device memory is allocated once and shared by all instances: inputs, head outputs, window keys and
values, the activations of whichever context runs, and the cache. Per step the host sends one block
of inputs and receives one block of head outputs; keys and values never leave the device.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...contract import (
    CACHE_NAMES,
    ELEMENT_BYTES,
    HEAD_OUTPUT_NAMES,
    HOST_INPUT_NAMES,
    WINDOW_NAMES,
    ContractError,
    Instance,
    TensorSpec,
    named,
    smallest_fit,
)
from ...manifest import BundleManifest
from ..packing import Packing
from ..protocol import StepInputs, StepOutputs
from ..status import EngineStatus
from .buffers import InputAreas, Memory
from .cuda_graphs import StepRunner, free_runners
from .device_cache import DeviceCache, scratch_context

if TYPE_CHECKING:
    from .program import TensorRtProgram

_Specs = tuple[TensorSpec, ...]


@dataclass(frozen=True)
class _Step:
    """What belongs to one instance; addresses and views stay as they are."""

    runner: StepRunner
    addresses: dict[str, int]  # of every tensor of the engine
    areas: InputAreas
    inputs: tuple[StepInputs, ...]  # views of each area
    input_bytes: int
    outputs: StepOutputs
    output_bytes: int


@dataclass(frozen=True)
class StateLayout:
    """Bytes that instances share in one state: each block as large as the largest needs."""

    inputs: int
    outputs: int
    windows: int  # keys or values
    activations: int
    contexts: tuple[int, ...]
    planes: int  # of the cache: layers * kv heads
    slot: int  # of one plane

    @classmethod
    def of(cls, manifest: BundleManifest, activations: int) -> StateLayout:
        """Lay out a state for the instances of a manifest."""
        info = manifest.model
        inputs, outputs, windows = 0, 0, 0
        for instance in manifest.instances:
            given, made = manifest.tensor_specs(instance)
            inputs = max(inputs, Packing.of(named(given, HOST_INPUT_NAMES)).size)
            outputs = max(outputs, Packing.of(named(made, HEAD_OUTPUT_NAMES)).size)
            windows = max(windows, *(spec.bytes for spec in named(made, WINDOW_NAMES)))
        return cls(
            inputs,
            outputs,
            windows,
            activations,
            contexts=tuple(instance.context for instance in manifest.instances),
            planes=info.layers * info.kv_heads,
            slot=info.head_dim * ELEMENT_BYTES[manifest.model_dtype],
        )

    @property
    def device_memory(self) -> dict[str, int]:
        """Bytes on the device by use."""
        slots = 2 * max(self.contexts) + scratch_context(self.contexts)
        return {
            "activations": self.activations,
            "cache": slots * self.planes * self.slot,
            "windows": 2 * self.windows,
            "inputs and head outputs": self.inputs + self.outputs,
        }


class TensorRtState:
    """One decode on an engine (see `protocol.DecodeState` and `protocol.StagingState`)."""

    def __init__(self, program: TensorRtProgram) -> None:
        """Allocate buffers and make a context for every instance; raises LopaError."""
        self._program, self._cuda = program, program.cuda
        self._model, self._dtype = program.manifest.model, program.manifest.model_dtype
        self._instances = program.instances
        self._work: Callable[[], None] | None = None
        self._last: Instance | None = None
        with contextlib.ExitStack() as resources:
            # In reverse order, when the state is dropped, at exit, or when this fails half-way.
            self._stream, self._blocks = self._cuda.stream(), Memory(self._cuda)
            resources.callback(self._cuda.destroy_stream, self._stream)
            resources.callback(self._blocks.free)
            runners: list[StepRunner] = []
            resources.callback(free_runners, runners)
            resources.callback(self._cuda.synchronize, self._stream)
            self._allocate(program.layout)
            self._steps = {}
            for instance, profile in zip(self._instances, program.profiles, strict=True):
                inputs, outputs = program.manifest.tensor_specs(instance)
                context = program.engine.context(
                    profile, inputs, outputs, self._activations, self._stream
                )
                runner = StepRunner(
                    instance.name,
                    self._cuda,
                    context,
                    program.log,
                    program.product.own_graphs,
                    program.strict,
                    program.lock,
                )
                runners.append(runner)
                self._steps[instance] = self._step(runner, inputs, outputs)
            self.close = weakref.finalize(self, resources.pop_all().close)

    @property
    def instances(self) -> tuple[Instance, ...]:
        """Shapes the engine can run."""
        return self._instances

    def shape_for(self, step: Instance) -> Instance:
        """Pad `step` to an instance with no less context than the cache is laid out for."""
        step = replace(step, context=max(step.context, self._cache.context))
        instance = smallest_fit(self._instances, step)
        if instance is None:
            known = ", ".join(item.name for item in self._instances)
            raise ContractError(f"no instance holds a step of {step.name}; the bundle has {known}")
        return instance

    def inputs(self, shape: Instance) -> StepInputs:
        """Return the views of `shape` that the next run sends to the device."""
        self._cache.reserve(shape.context)
        step = self._steps[shape]
        return step.inputs[step.areas.fill()]

    def while_running(self, work: Callable[[], None]) -> None:
        """Have `work` done once: in the next run, between its launch and the wait for it."""
        self._work = work

    def stage(self, shape: Instance, layout: Hashable) -> StepInputs | None:
        """Return spare views of `shape` to write `layout` into; None: it is there already."""
        step = self._steps[shape]
        index = step.areas.prepare(layout)
        return None if index is None else step.inputs[index]

    def staged(self, shape: Instance, layout: Hashable) -> StepInputs | None:
        """Make views that hold `layout` the inputs of `shape`; None if it was not staged."""
        step = self._steps[shape]
        index = step.areas.take(layout)
        if index is None:
            return None
        self._cache.reserve(shape.context)
        return step.inputs[index]

    def run(self, shape: Instance) -> StepOutputs:
        """Run one step; head outputs are host views valid until the next run."""
        step, cuda, stream = self._steps[shape], self._cuda, self._stream
        cuda.upload(self._input_block, step.areas.address, step.input_bytes, stream)
        first = step.runner.enqueue(step.addresses, stream)
        received = self._received.ctypes.data
        cuda.download(received, self._output_block, step.output_bytes, stream)
        work, self._work = self._work, None
        if work is not None:
            work()
        cuda.synchronize(stream)
        self._last = shape
        if first:
            with self._program.lock:
                self._program.engine.save_cache()
        return step.outputs

    def commit(self, rows: NDArray[np.intp], slots: NDArray[np.intp]) -> None:
        """Copy window rows of the last run to cache slots, on the device, before the next run."""
        windows = (self._windows["window_keys"], self._windows["window_values"])
        self._cache.commit(windows, self._last_shape.window_rows, rows, slots)

    def reset(self) -> None:
        """Forget the cache contents; the buffers stay."""
        self._cache.reset()
        self._last = self._work = None

    def status(self) -> EngineStatus:
        """Return what the program says, and how each instance's steps are launched here."""
        graphs = tuple(step.runner.status for step in self._steps.values())
        return replace(self._program.status(), graphs=graphs)

    def window(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Keys and values [L, H, N, D] of the last run, for inspection; bfloat16 as its bits."""
        rows = self._last_shape.window_rows
        return self._read(self._windows["window_keys"], rows), self._read(
            self._windows["window_values"], rows
        )

    def cache(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Keys and values [L, H, C, D] of the cache as it is laid out now, for inspection."""
        context = self._cache.context
        return self._read(self._cache.keys, context), self._read(self._cache.values, context)

    def load_cache(self, keys: NDArray[Any], values: NDArray[Any]) -> None:
        """Replace the cache, as it is laid out now, to run a recorded step again."""
        info = self._model
        expected = (info.layers, info.kv_heads, self._cache.context, info.head_dim)
        size = math.prod(expected) * ELEMENT_BYTES[self._dtype]
        for address, contents in ((self._cache.keys, keys), (self._cache.values, values)):
            if (contents.shape, contents.nbytes) != (expected, size):
                raise ContractError(
                    f"a cache of {contents.dtype} {list(contents.shape)} was given, expected "
                    f"{self._dtype} {list(expected)}"
                )
            source = np.ascontiguousarray(contents)
            self._cuda.upload(address, source.ctypes.data, size, self._stream)
            self._cuda.synchronize(self._stream)

    @property
    def _last_shape(self) -> Instance:
        if self._last is None:
            raise ContractError("no step has run since the last reset")
        return self._last

    def _allocate(self, layout: StateLayout) -> None:
        allocate = self._blocks.allocate
        self._input_block, self._output_block = allocate(layout.inputs), allocate(layout.outputs)
        self._received = self._blocks.allocate_pinned(layout.outputs)
        self._windows = {name: allocate(layout.windows) for name in WINDOW_NAMES}
        self._activations = (allocate(max(layout.activations, 1)), layout.activations)
        self._cache = DeviceCache(
            self._cuda, self._blocks, self._stream, layout.contexts, layout.planes, layout.slot
        )

    def _step(self, runner: StepRunner, inputs: _Specs, outputs: _Specs) -> _Step:
        given = Packing.of(named(inputs, HOST_INPUT_NAMES))
        made = Packing.of(named(outputs, HEAD_OUTPUT_NAMES))
        areas = InputAreas(given, self._blocks.allocate_pinned)
        return _Step(
            runner,
            {
                **given.addresses(self._input_block),
                **dict(zip(CACHE_NAMES, (self._cache.keys, self._cache.values), strict=True)),
                **made.addresses(self._output_block),
                **self._windows,
            },
            areas,
            tuple(StepInputs(**views) for views in areas.views),
            given.size,
            StepOutputs(**made.views(self._received)),
            made.size,
        )

    def _read(self, address: int, slots: int) -> NDArray[Any]:
        """Copy keys or values [L, H, slots, D] to the host."""
        info = self._model
        dtype = np.uint16 if self._dtype == "bfloat16" else np.dtype(self._dtype)
        found = np.empty((info.layers, info.kv_heads, slots, info.head_dim), dtype)
        self._cuda.download(found.ctypes.data, address, found.nbytes, self._stream)
        self._cuda.synchronize(self._stream)
        return found
