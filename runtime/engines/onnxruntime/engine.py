"""ONNX Runtime: one session serves every instance; caches and outputs are bound once.

On the CPU the session runs the exact shape of a step and the host arrays are the bound buffers. On
CUDA every step is padded to a static instance, buffers and cache live on the device at fixed
addresses, and each instance is captured as its own CUDA graph on its first run. Per step one copy
sends the inputs and one receives the head outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from ...manifest import BundleManifest
from ..protocol import StepInputs, StepOutputs
from ..status import EngineStatus
from .buffers import Block, Buffers, DeviceBuffers, HostBuffers, Pair, Slot
from .cuda_graphs import SessionGraphs
from .processor import processor_saturates
from .tensors import check_commit, check_step

PROVIDERS = ("cpu", "cuda")
COMMIT_FILE = "commit.onnx"
# Granularity of exact shapes on the CPU: few distinct shapes, little padding.
CONTEXT_STEP = 64
ROW_STEP = 8
KEPT_SHAPES = 512  # exact shapes whose bindings are kept for reuse


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


class OnnxRuntimeEngine:
    """A bundle run by ONNX Runtime (see `protocol.Engine`)."""

    def __init__(
        self,
        folder: Path,
        manifest: BundleManifest,
        provider: str = "cpu",
        threads: int = 0,
        resident: bool | None = None,
        strict: bool = False,
    ) -> None:
        """Load the session; `resident` (default: not on the CPU) keeps every buffer in OrtValues.

        A resident engine runs static instances only and commits with the bundle's commit graph.
        With `strict` a CUDA graph that cannot be captured is an error.
        """
        if provider not in PROVIDERS:
            raise LopaError(f"provider is {provider!r}, expected one of: {', '.join(PROVIDERS)}")
        self._ort = load_library()
        self._check_provider(provider)
        self._manifest = manifest
        self._instances = manifest.instances
        self._provider = provider
        quantized = manifest.quantization is not None or manifest.fast is not None
        self._slow_integers = quantized and provider == "cpu" and processor_saturates()
        resident = provider != "cpu" if resident is None else resident
        self._exact = manifest.engine.dynamic and not resident
        self._limit = max(item.context for item in self._instances)
        self._graphs = SessionGraphs(self._instances, strict) if provider == "cuda" else None
        self._sessions = [self._open_step(folder / manifest.graph.file, threads)]
        if manifest.fast is not None and provider == "cpu":
            self._sessions.append(self._open_step(folder / manifest.fast.file, threads))
        for session, file in zip(self._sessions, manifest.step_files, strict=False):
            check_step(session, folder / file, manifest)
        self._buffers: Buffers
        if resident:
            commit = self._open(folder / COMMIT_FILE, threads, graphs=False)
            check_commit(commit, folder / COMMIT_FILE, manifest)
            self._buffers = DeviceBuffers(self._ort, provider, commit)
        else:
            self._buffers = HostBuffers()
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
        bound = self._bound.get(shape)
        if bound is None or bound.generation != self._buffers.generation:
            if self._exact and len(self._bound) >= KEPT_SHAPES:  # others are captured as they are
                self._bound.clear()
            bound = self._bound[shape] = self._bind(shape)
        return bound.inputs

    def run(self, shape: Instance) -> StepOutputs:
        """Run one step; head outputs are host views valid until the next run."""
        return self._run(shape, 0)

    def run_fast(self, shape: Instance) -> StepOutputs:
        """Run one step by the fast graph; raises LopaError where it is not open."""
        if len(self._sessions) == 1:
            raise LopaError(
                "the fast graph of a bundle runs on the CPU; use --provider cpu, or "
                "--precision-policy full"
            )
        return self._run(shape, 1)

    def commit(self, rows: NDArray[np.intp], slots: NDArray[np.intp]) -> None:
        """Copy window rows of the last run to cache slots."""
        windows = self._windows()
        keys, values = (self._caches[name] for name in CACHE_NAMES)
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
        """Return the library, the provider, and how each instance's steps are launched."""
        graphs = () if self._graphs is None else self._graphs.status()
        title = f"onnxruntime {self._ort.__version__}"
        return EngineStatus(title, f"{self._provider} provider", {}, graphs)

    def _run(self, shape: Instance, graph: int) -> StepOutputs:
        bound = self._bound[shape]
        bound.sent.upload()
        session, binding = self._sessions[graph], bound.bindings[graph]
        if self._graphs is None:
            session.run_with_iobinding(binding, bound.run_options)
        else:
            self._graphs.run(shape, session, binding, bound.run_options)
        bound.received.download()
        self._last = shape
        return bound.outputs

    def _windows(self) -> Pair:
        if self._last is None:
            raise ContractError("no step has run since the last reset")
        return self._bound[self._last].windows

    def _check_provider(self, provider: str) -> None:
        available = self._ort.get_available_providers()
        offered = ", ".join(available)
        if provider == "cuda" and "CUDAExecutionProvider" not in available:
            raise LopaError(
                f"provider 'cuda' needs onnxruntime-gpu and an NVIDIA GPU; this onnxruntime "
                f"{self._ort.__version__} offers {offered}: install lopa[cuda] or use "
                "--provider cpu"
            )

    def _open_step(self, path: Path, threads: int) -> Any:
        """Open the step graph, on CUDA with graph capture where the library can."""
        if self._graphs is None:
            return self._open(path, threads, graphs=False)
        try:
            return self._open(path, threads, graphs=True)
        except LopaError as error:
            session = self._open(path, threads, graphs=False)
            self._graphs.give_up(self._instances, str(error.__cause__ or error))
            return session

    def _open(self, path: Path, threads: int, graphs: bool) -> Any:
        options = self._ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        provider: Any = "CPUExecutionProvider"
        if self._provider == "cuda":
            settings = {"enable_cuda_graph": "1" if graphs else "0", "device_id": "0"}
            provider = ("CUDAExecutionProvider", settings)
        options.enable_mem_pattern = not self._exact  # patterns of many shapes only hold memory
        if self._slow_integers:  # exact ones; where both kinds are exact the others are faster
            options.add_session_config_entry("session.x64quantprecision", "1")
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

    def _reserve(self, context: int) -> None:
        """Grow the cache to `context` slots, keeping its contents."""
        if context <= self._context:
            return
        info, dtype = self._manifest.model, self._manifest.model_dtype
        shape = (info.layers, info.kv_heads, context, info.head_dim)
        grown = {name: self._buffers.cache(TensorSpec(name, dtype, shape)) for name in CACHE_NAMES}
        if self._context:
            for name in CACHE_NAMES:
                self._buffers.grow(self._caches[name], grown[name])
        self._caches, self._context = grown, context

    def _bind(self, shape: Instance) -> _Bound:
        inputs, outputs = self._manifest.tensor_specs(shape)
        sent = self._buffers.block(named(inputs, HOST_INPUT_NAMES))
        received = self._buffers.block(named(outputs, HEAD_OUTPUT_NAMES))
        keys, values = (self._buffers.window(spec) for spec in named(outputs, WINDOW_NAMES))
        slots = {**self._caches, **dict(zip(WINDOW_NAMES, (keys, values), strict=True))}
        addresses = {name: slot.address for name, slot in slots.items()}
        addresses |= sent.addresses | received.addresses
        bindings = []
        for session in self._sessions:  # all on the same tensors
            binding = session.io_binding()
            for specs, bind in ((inputs, binding.bind_input), (outputs, binding.bind_output)):
                for spec in specs:
                    dtype, sizes = np.dtype(spec.dtype), list(spec.shape)
                    bind(spec.name, self._provider, 0, dtype, sizes, addresses[spec.name])
            bindings.append(binding)
        run_options = self._ort.RunOptions()
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
