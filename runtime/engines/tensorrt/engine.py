"""TensorRT and TensorRT for RTX: one execution context and one CUDA graph per instance.

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
from pathlib import Path
from typing import Any

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
    LopaError,
    TensorSpec,
    named,
    smallest_fit,
)
from ...engine_info import EngineStamp
from ...manifest import BundleManifest
from ..cuda import Cuda, CudaError, Gpu
from ..packing import Packing
from ..protocol import StepInputs, StepOutputs
from ..status import EngineStatus
from .buffers import InputAreas, Memory
from .cuda_graphs import StepRunner, free_runners
from .device_cache import DeviceCache
from .kernel_cache import RuntimeCacheFile
from .library import PRODUCTS, load_library, make_log
from .program import Program
from .stamp import Machine, check_stamp, dotted, this_platform

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


class TensorRtEngine:
    """A bundle run by a TensorRT library (see `protocol.Engine` and `protocol.StagingEngine`)."""

    def __init__(
        self,
        folder: Path,
        manifest: BundleManifest,
        *,
        strict: bool = False,
        runtime_cache: Path | None = None,
    ) -> None:
        """Check the stamp, deserialise, make contexts and buffers; raises LopaError.

        With `strict` an instance whose graph cannot be captured is an error. `runtime_cache` is
        where TensorRT for RTX keeps the kernels it compiles here, by default beside the bundle.
        """
        product, library = PRODUCTS[manifest.engine.target], load_library(manifest.engine.target)
        self._cuda = Cuda()
        gpu = _first_gpu(self._cuda, manifest.engine.target)
        stamp = check_stamp(manifest.engine, Machine(library.__version__, this_platform(), gpu))
        self._title = f"{product.title} {library.__version__}"
        self._device = f"{gpu.name}, SM {dotted(gpu.compute_capability)}"
        self._model, self._dtype = manifest.model, manifest.model_dtype
        self._instances = manifest.instances
        self._work: Callable[[], None] | None = None
        self._last: Instance | None = None
        log = make_log(library)
        kept = RuntimeCacheFile(runtime_cache) if runtime_cache else RuntimeCacheFile.beside(folder)
        with contextlib.ExitStack() as resources:
            # In reverse order, when the engine is dropped, at exit, or when this fails half-way.
            self._stream, self._blocks = self._cuda.stream(), Memory(self._cuda)
            resources.callback(self._cuda.destroy_stream, self._stream)
            resources.callback(self._blocks.free)
            runners: list[StepRunner] = []
            resources.callback(free_runners, runners)
            resources.callback(self._cuda.synchronize, self._stream)
            path = folder / manifest.graph.file
            self._program = Program(library, product, log, path, stamp, kept)
            self._allocate(manifest, stamp)
            self._steps = {}
            for instance, profile in zip(self._instances, self._profiles, strict=True):
                inputs, outputs = manifest.tensor_specs(instance)
                context = self._program.context(
                    profile, inputs, outputs, self._activations, self._stream
                )
                runner = StepRunner(
                    instance.name, self._cuda, context, log, product.own_graphs, strict
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
            self._program.save_cache()
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
        """Return versions, device memory by use, and how each instance's steps are launched."""
        graphs = tuple(step.runner.status for step in self._steps.values())
        return EngineStatus(self._title, self._device, self._memory, graphs)

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

    def _allocate(self, manifest: BundleManifest, stamp: EngineStamp) -> None:
        """Allocate what instances share, each block as large as the largest of them needs."""
        info = manifest.model
        self._profiles = [stamp.profiles.index(instance.name) for instance in self._instances]
        inputs, outputs, windows = 0, 0, 0
        for instance in self._instances:
            given, made = manifest.tensor_specs(instance)
            inputs = max(inputs, Packing.of(named(given, HOST_INPUT_NAMES)).size)
            outputs = max(outputs, Packing.of(named(made, HEAD_OUTPUT_NAMES)).size)
            windows = max(windows, *(spec.bytes for spec in named(made, WINDOW_NAMES)))
        allocate = self._blocks.allocate
        self._input_block, self._output_block = allocate(inputs), allocate(outputs)
        self._received = self._blocks.allocate_pinned(outputs)
        self._windows = {name: allocate(windows) for name in WINDOW_NAMES}
        activations = self._program.activation_bytes(self._profiles)
        self._activations = (allocate(max(activations, 1)), activations)
        contexts = tuple(instance.context for instance in self._instances)
        slot_bytes = info.head_dim * ELEMENT_BYTES[self._dtype]
        planes = info.layers * info.kv_heads
        self._cache = DeviceCache(
            self._cuda, self._blocks, self._stream, contexts, planes, slot_bytes
        )
        self._memory = {
            "engine": manifest.files[manifest.graph.file].bytes,
            "activations": activations,
            "cache": 2 * self._cache.size + self._cache.scratch_size,
            "windows": 2 * windows,
            "inputs and head outputs": inputs + outputs,
        }

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


def _first_gpu(cuda: Cuda, target: str) -> Gpu:
    try:
        return cuda.gpus()[0]
    except (CudaError, IndexError) as error:
        raise LopaError(
            f"a {target} bundle needs an NVIDIA GPU and its driver ({error}); build the model for "
            "--target onnxruntime to decode on a CPU"
        ) from error
