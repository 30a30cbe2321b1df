"""ONNX Runtime: one session serves every instance; caches and outputs are bound once.

On the CPU the session runs the exact shape of a step and the host arrays are the bound buffers. On
CUDA every step is padded to a static instance, buffers and cache live on the device at fixed
addresses, and each instance is captured as its own CUDA graph on its first run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contract import (
    ContractError,
    Instance,
    LopaError,
    TensorSpec,
    input_specs,
    output_specs,
    smallest_fit,
)
from ..manifest import BundleManifest
from .protocol import StepInputs, StepOutputs

PROVIDERS = ("cpu", "cuda")
COMMIT_FILE = "commit.onnx"
# Granularity of exact shapes on the CPU: few distinct shapes, little padding.
CONTEXT_STEP = 64
ROW_STEP = 8

_HEAD_OUTPUTS = ("token_ids", "log_probs", "entropy")
_CACHES = ("cache_keys", "cache_values")


def load_library() -> Any:
    """Import onnxruntime or say which extra brings it."""
    try:
        import onnxruntime
    except ImportError:
        raise LopaError(
            "onnxruntime is not installed; install lopa[cpu] (or lopa[cuda] for NVIDIA GPUs)"
        ) from None
    return onnxruntime


@dataclass(frozen=True)
class _Bound:
    """One shape with its binding and the views the decoder reads and writes."""

    binding: Any
    inputs: StepInputs
    outputs: StepOutputs
    host: dict[str, NDArray[Any]]
    device: dict[str, Any]
    run_options: Any


class OnnxRuntimeEngine:
    """A bundle run by ONNX Runtime (see `protocol.Engine`)."""

    def __init__(
        self,
        folder: Path,
        manifest: BundleManifest,
        provider: str = "cpu",
        threads: int = 0,
        resident: bool | None = None,
    ) -> None:
        """Load the session; `resident` (default: not on the CPU) keeps every buffer in OrtValues.

        A resident engine runs static instances only and commits with the bundle's commit graph.
        """
        if provider not in PROVIDERS:
            raise LopaError(f"provider is {provider!r}, expected one of {list(PROVIDERS)}")
        self._ort = load_library()
        self._check_provider(provider)
        self._model, self._dtype = manifest.model, manifest.model_dtype
        self._instances = manifest.instances
        self._provider = provider
        resident = provider != "cpu" if resident is None else resident
        self._resident = resident
        self._exact = manifest.engine.dynamic and not resident
        self._limit = max(item.context for item in self._instances)
        self._session = self._open(folder / manifest.graph.file, threads, graphs=True)
        self._commit = self._open(folder / COMMIT_FILE, threads, graphs=False) if resident else None
        self._bound: dict[Instance, _Bound] = {}
        self._buffers = {} if resident else self._allocate()
        self._caches: dict[str, Any] = {}
        self._device_caches: dict[int, dict[str, Any]] = {}
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
        if not self._exact:
            return instance
        return replace(
            step,
            context=min(_round_up(step.context, CONTEXT_STEP), self._limit),
            rows=min(_round_up(step.rows, ROW_STEP), step.window_rows),
        )

    def inputs(self, shape: Instance) -> StepInputs:
        """Return the input views of `shape`, made on first use."""
        self._reserve(shape.context)
        if shape not in self._bound:
            self._bound[shape] = self._bind(shape)
        return self._bound[shape].inputs

    def run(self, shape: Instance) -> StepOutputs:
        """Run one step; head outputs are host views valid until the next run."""
        bound = self._bound[shape]
        for name, value in bound.device.items():
            if name in bound.host and name not in _HEAD_OUTPUTS:
                value.update_inplace(bound.host[name])
        self._session.run_with_iobinding(bound.binding, bound.run_options)
        for name in _HEAD_OUTPUTS:
            if name in bound.device:
                bound.host[name][...] = bound.device[name].numpy()
        self._last = shape
        return bound.outputs

    def commit(self, rows: NDArray[np.intp], slots: NDArray[np.intp]) -> None:
        """Copy window rows of the last run to cache slots."""
        if self._last is None:
            raise ContractError("commit before the first run")
        bound = self._bound[self._last]
        for cache, window in zip(_CACHES, ("window_keys", "window_values"), strict=True):
            if not self._resident:
                copied = bound.host[window][:, :, as_span(rows)]
                self._caches[cache][:, :, as_span(slots)] = copied
            else:
                self._commit_on_device(cache, bound.device[window], rows, slots)

    def reset(self) -> None:
        """Forget the cache contents; the buffers stay."""
        self._last = None
        self._context = 0

    def _check_provider(self, provider: str) -> None:
        available = self._ort.get_available_providers()
        if provider == "cuda" and "CUDAExecutionProvider" not in available:
            raise LopaError(
                f"provider 'cuda' needs onnxruntime-gpu and an NVIDIA GPU; this onnxruntime "
                f"{self._ort.__version__} offers {available}: install lopa[cuda] or use "
                "--provider cpu"
            )

    def _open(self, path: Path, threads: int, graphs: bool) -> Any:
        options = self._ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        provider: Any = "CPUExecutionProvider"
        if self._provider == "cuda":
            settings = {"enable_cuda_graph": "1" if graphs else "0", "device_id": "0"}
            provider = ("CUDAExecutionProvider", settings)
        options.enable_mem_pattern = self._resident  # patterns of many shapes only hold memory
        try:
            session = self._ort.InferenceSession(str(path), options, providers=[provider])
        except Exception as error:  # the library raises its own undocumented classes
            raise LopaError(
                f"onnxruntime {self._ort.__version__} cannot load {path}: {error}; build it again"
            ) from error
        if self._provider == "cuda" and session.get_providers()[0] != "CUDAExecutionProvider":
            raise LopaError(
                "onnxruntime could not start its CUDA provider (no usable GPU or driver); "
                "use --provider cpu"
            )
        return session

    def _allocate(self) -> dict[str, NDArray[Any]]:
        """Allocate one flat buffer per tensor, large enough for every instance (CPU)."""
        info = self._model
        dims = (info.layers, info.kv_heads, info.head_dim)
        sizes: dict[str, tuple[int, str]] = {}
        for instance in self._instances:
            for spec in (
                *input_specs(instance, *dims, self._dtype),
                *output_specs(instance, *dims, info.candidates, self._dtype),
            ):
                size = max(math.prod(spec.shape), sizes.get(spec.name, (0, ""))[0])
                sizes[spec.name] = (size, spec.dtype)
        return {name: np.zeros(size, dtype) for name, (size, dtype) in sizes.items()}

    def _reserve(self, context: int) -> None:
        """Grow the cache to `context` slots, keeping its contents."""
        if context <= self._context:
            return
        grown = self._cache_buffers(context)
        if self._context:
            for name in _CACHES:
                before = self._caches[name]
                kept = before.numpy() if self._resident else before.copy()
                if self._resident:
                    host = np.zeros(self._cache_shape(context), self._dtype)
                    host[:, :, : self._context] = kept
                    grown[name].update_inplace(host)
                else:
                    grown[name][:, :, : self._context] = kept
        self._caches, self._context = grown, context

    def _cache_buffers(self, context: int) -> dict[str, Any]:
        """Return the cache for `context` slots: always the same addresses for the same size.

        On the host all sizes are views of one buffer; slots not written yet hold finite leftovers
        that the cache mask hides.
        """
        shape = self._cache_shape(context)
        if not self._resident:
            specs = [TensorSpec(name, self._dtype, shape) for name in _CACHES]
            return {spec.name: self._scratch(spec) for spec in specs}
        if context not in self._device_caches:
            self._device_caches[context] = {
                name: self._on_device(np.zeros(shape, self._dtype)) for name in _CACHES
            }
        return self._device_caches[context]

    def _cache_shape(self, context: int) -> tuple[int, int, int, int]:
        return (self._model.layers, self._model.kv_heads, context, self._model.head_dim)

    def _bind(self, shape: Instance) -> _Bound:
        info = self._model
        dims = (info.layers, info.kv_heads, info.head_dim)
        inputs = input_specs(shape, *dims, self._dtype)
        outputs = output_specs(shape, *dims, info.candidates, self._dtype)
        binding = self._session.io_binding()
        host: dict[str, NDArray[Any]] = {}
        device: dict[str, Any] = {}
        for spec in (*inputs, *outputs):
            is_input = spec in inputs
            self._bind_tensor(binding, spec, is_input, host, device)
        run_options = self._ort.RunOptions()
        if self._provider == "cuda":
            graph = self._instances.index(shape) + 1  # id 0 is reserved
            run_options.add_run_config_entry("gpu_graph_id", str(graph))
        return _Bound(
            binding,
            StepInputs(**{spec.name: host[spec.name] for spec in inputs if spec.name in host}),
            StepOutputs(**{name: host[name] for name in _HEAD_OUTPUTS}),
            host,
            device,
            run_options,
        )

    def _bind_tensor(
        self,
        binding: Any,
        spec: TensorSpec,
        is_input: bool,
        host: dict[str, NDArray[Any]],
        device: dict[str, Any],
    ) -> None:
        bind = binding.bind_input if is_input else binding.bind_output
        name, dtype = spec.name, np.dtype(spec.dtype)
        on_device = self._resident
        if name in _CACHES:
            buffer = self._caches[name]
        elif on_device:
            if is_input or name in _HEAD_OUTPUTS:
                host[name] = np.zeros(spec.shape, dtype)
            buffer = device[name] = self._on_device(np.zeros(spec.shape, dtype))
        else:
            buffer = host[name] = self._scratch(spec)
        address = buffer.data_ptr() if on_device else buffer.ctypes.data
        bind(name, self._provider, 0, dtype, list(spec.shape), address)

    def _scratch(self, spec: TensorSpec) -> NDArray[Any]:
        """Return a view of the buffer that all shapes share for this tensor."""
        return self._buffers[spec.name][: math.prod(spec.shape)].reshape(spec.shape)

    def _on_device(self, array: NDArray[Any]) -> Any:
        return self._ort.OrtValue.ortvalue_from_numpy(array, self._provider, 0)

    def _commit_on_device(
        self, cache: str, window: Any, rows: NDArray[np.intp], slots: NDArray[np.intp]
    ) -> None:
        """Write the rows in place with the bundle's small commit graph (cache stays on device)."""
        assert self._commit is not None
        source = np.arange(self._context, dtype=np.int64)
        source[slots] = self._context + rows
        buffer = self._caches[cache]
        binding = self._commit.io_binding()
        binding.bind_ortvalue_input("cache", buffer)
        binding.bind_ortvalue_input("window", window)
        binding.bind_cpu_input("source", source)
        binding.bind_ortvalue_output("committed", buffer)
        self._commit.run_with_iobinding(binding)


def as_span(indices: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """Return the slice that equals ascending consecutive `indices`, else the indices."""
    if (
        len(indices)
        and indices[-1] - indices[0] == len(indices) - 1
        and np.all(np.diff(indices) == 1)
    ):
        return slice(int(indices[0]), int(indices[-1]) + 1)
    return indices


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
