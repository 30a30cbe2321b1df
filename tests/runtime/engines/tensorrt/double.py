"""A double of the TensorRT Python library that computes with ONNX Runtime on a `CudaDouble`.

Its "engine" is a JSON text that names an ONNX graph and the shapes of its profiles. It refuses what
the documentation forbids: a step without all addresses, shapes outside the profile, unaligned or
overlapping memory, activation memory that is missing or too small, a first run inside a capture.
Like the real library it returns None or False and gives the reason to the logger alone.
"""

from __future__ import annotations

import enum
import functools
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from lopa.runtime.contract import Instance, TensorSpec, input_specs, output_specs
from lopa.runtime.manifest import read_bundle

from ..cuda_double import CudaDouble

ACTIVATION_BYTES = 4096  # per window row
Shape = tuple[int, ...]


def write_plan(
    path: Path, bundle: Path, instances: Sequence[Instance], version: str, name: str, lean: bool
) -> None:
    """Write the "engine" of an ONNX Runtime bundle for `instances`.

    `name` is that of the network, `lean` says that it brings a runtime of its own.
    """
    manifest = read_bundle(bundle)
    plan = {
        "name": name,
        "lean": lean,
        "graph": str(bundle / manifest.graph.file),
        "version": version,
        "dims": [manifest.model.layers, manifest.model.kv_heads, manifest.model.head_dim],
        "candidates": manifest.model.candidates,
        "dtype": manifest.model_dtype,
        "profiles": [asdict(instance) for instance in instances],
    }
    path.write_text(json.dumps(plan), encoding="utf-8")


class Severity(enum.IntEnum):
    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2
    INFO = 3


class TensorRtDouble:
    """The module `tensorrt`, or `tensorrt_rtx` with `rtx`; `failures` names calls that refuse.

    `uncapturable` makes every enqueue inside a capture spoil it.
    """

    def __init__(self, cuda: CudaDouble, version: str = "11.4.0.106", rtx: bool = False) -> None:
        self.cuda, self.__version__, self.rtx = cuda, version, rtx
        self.failures: set[str] = set()
        self.uncapturable = False
        self.contexts: list[Context] = []
        self.enqueued = 0
        self.compiled = b""

        class ILogger:
            INTERNAL_ERROR, ERROR = Severity.INTERNAL_ERROR, Severity.ERROR
            WARNING, INFO = Severity.WARNING, Severity.INFO

            def __init__(self) -> None:
                self.made = True

            def log(self, severity: Severity, msg: str) -> None:
                raise NotImplementedError

        class DataType(enum.Enum):
            FLOAT = "float32"
            HALF = "float16"
            BF16 = "bfloat16"
            INT32 = "int32"
            BOOL = "bool"

        class EngineValidity(enum.Enum):
            VALID = 0
            SUBOPTIMAL = 1
            INVALID = 2

        class EngineInvalidityDiagnostics(enum.IntEnum):
            VERSION_MISMATCH = 1
            UNSUPPORTED_CC = 2
            OLD_CUDA_DRIVER = 4
            OLD_CUDA_RUNTIME = 8
            INSUFFICIENT_GPU_MEMORY = 16
            MALFORMED_ENGINE = 32
            CUDA_ERROR = 64

        class ExecutionContextAllocationStrategy(enum.Enum):
            STATIC = 0
            USER_MANAGED = 2

        class CudaGraphStrategy(enum.Enum):
            DISABLED = 0
            WHOLE_GRAPH_CAPTURE = 1

        self.validity: tuple[Any, int] = (EngineValidity.VALID, 0)
        self.ILogger, self.DataType = ILogger, DataType
        self.EngineValidity = EngineValidity
        self.EngineInvalidityDiagnostics = EngineInvalidityDiagnostics
        self.ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy
        self.CudaGraphStrategy = CudaGraphStrategy

    def Runtime(self, log: Any) -> Runtime:  # noqa: N802
        assert isinstance(log, self.ILogger)
        assert log.made, "the base class was not initialised"
        return Runtime(self, log)


class Runtime:
    def __init__(self, library: TensorRtDouble, log: Any) -> None:
        self.library, self.log = library, log
        self.engine_host_code_allowed = False
        self.checked = not library.rtx

    def get_engine_validity(self, plan: Any) -> tuple[Any, int]:
        assert self.library.rtx
        assert bytes(plan)
        self.checked = True
        return self.library.validity

    def deserialize_cuda_engine(self, plan: Any) -> Engine | None:
        self.log.log(Severity.WARNING, "a warning is no error")
        assert self.checked, "deserialised without asking whether it runs here"
        plan = json.loads(bytes(plan))
        if plan["lean"] != self.engine_host_code_allowed:
            self.log.log(Severity.ERROR, "host code in the engine is not allowed")
            return None
        if "deserialize_cuda_engine" in self.library.failures:
            self.log.log(Severity.ERROR, "Error Code 1:\n the plan is damaged")
            return None
        assert plan["version"] == self.library.__version__, "deserialised in spite of its version"
        return Engine(self.library, self.log, plan)


class Engine:
    """A plan; profile p takes the shapes of its instance and no others."""

    def __init__(self, library: TensorRtDouble, log: Any, plan: dict[str, Any]) -> None:
        self.library, self.log, self.name = library, log, plan["name"]
        self.instances = [Instance(**profile) for profile in plan["profiles"]]
        self.session = _session(plan["graph"])
        layers, kv_heads, head_dim = plan["dims"]
        dims, dtype = (layers, kv_heads, head_dim), plan["dtype"]
        self.inputs = [_by_name(input_specs(i, *dims, dtype)) for i in self.instances]
        self.outputs = [
            _by_name(output_specs(i, *dims, plan["candidates"], dtype)) for i in self.instances
        ]
        self.names = [*self.inputs[0], *self.outputs[0]]
        self.num_io_tensors = len(self.names)
        self.num_optimization_profiles = len(self.instances)

    def get_tensor_name(self, index: int) -> str:
        return self.names[index]

    def get_tensor_dtype(self, name: str) -> Any:
        return self.library.DataType((self.inputs[0] | self.outputs[0])[name].dtype)

    def get_device_memory_size_for_profile_v2(self, profile: int) -> int:
        return ACTIVATION_BYTES * self.instances[profile].window_rows

    def create_runtime_config(self) -> RuntimeConfig:
        assert self.library.rtx
        return RuntimeConfig(self.library)

    def create_execution_context(self, settings: Any) -> Context | None:
        if "create_execution_context" in self.library.failures:
            self.log.log(Severity.ERROR, "out of memory")
            return None
        if self.library.rtx:
            assert isinstance(settings, RuntimeConfig)
            assert settings.strategy.name == "USER_MANAGED"
            assert settings.cuda_graph_strategy.name == "WHOLE_GRAPH_CAPTURE"
            assert settings.keeps_kernels, "what is compiled would be lost"
            self.library.compiled = b"kernels" + bytes([len(self.library.contexts)])
        else:
            assert settings is self.library.ExecutionContextAllocationStrategy.USER_MANAGED
        context = Context(self)
        self.library.contexts.append(context)
        return context


class RuntimeConfig:
    """Of TensorRT for RTX; the runtime cache is the bytes of what was compiled."""

    def __init__(self, library: TensorRtDouble) -> None:
        self.library = library
        self.strategy: Any = None
        self.keeps_kernels = False
        self.cuda_graph_strategy = library.CudaGraphStrategy.DISABLED

    def set_execution_context_allocation_strategy(self, strategy: Any) -> None:
        self.strategy = strategy

    def create_runtime_cache(self) -> RuntimeConfig:
        return self

    def set_runtime_cache(self, cache: RuntimeConfig) -> bool:
        self.keeps_kernels = True
        return True

    def deserialize(self, blob: bytes) -> bool:
        return blob.startswith(b"kernels")

    def serialize(self) -> bytes:
        return self.library.compiled


class Context:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.library = engine, engine.library
        self.profile: int | None = None
        self.shapes: dict[str, Shape] = {}
        self.addresses: dict[str, int] = {}
        self.memory: tuple[int, int] | None = None
        self.warm = False

    def set_optimization_profile_async(self, profile: int, stream: int) -> bool:
        assert stream in self.library.cuda.streams, "the default stream"
        self.profile, self.shapes = profile, {}
        return True

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        assert self.profile is not None, "shapes before the profile"
        if shape != self.engine.inputs[self.profile][name].shape:
            return self._refuse(f"{name} {shape} is outside profile {self.profile}")
        self.shapes[name] = shape
        return True

    def get_tensor_shape(self, name: str) -> Shape:
        assert self.profile is not None
        return self._specs()[name].shape if self._shaped() else (-1,)

    def set_device_memory(self, address: int, size: int) -> None:
        assert self.profile is not None
        assert address % 256 == 0
        assert size >= self.engine.get_device_memory_size_for_profile_v2(self.profile)
        self.memory = (address, size)

    def set_tensor_address(self, name: str, address: int) -> bool:
        if "set_tensor_address" in self.library.failures or address % 256:
            return self._refuse(f"address {address:#x} of {name} is not aligned")
        self.addresses[name] = address
        return True

    def is_stream_capturable(self, stream: int) -> bool:
        return not self.library.uncapturable

    def execute_async_v3(self, stream: int) -> bool:
        cuda = self.library.cuda
        capturing = cuda.capturing(stream)
        if capturing and (self.library.uncapturable or not self.warm):
            cuda.invalidate(stream)
            return self._refuse("operation not permitted when stream is capturing")
        if "execute_async_v3" in self.library.failures:
            return self._refuse("the device is gone")
        assert self.profile is not None
        assert self.memory is not None, "no activation memory"
        if missing := [name for name in self._specs() if name not in self.addresses]:
            return self._refuse(f"no address for {missing}")
        if not self._shaped():
            return self._refuse("input shapes are missing")
        self._check_overlap()
        self.library.enqueued += 1
        self.warm = True
        cuda.enqueue(stream, functools.partial(self._compute, dict(self.addresses), self.memory))
        return True

    def _compute(self, addresses: dict[str, int], memory: tuple[int, int]) -> None:
        """What the kernels do, when the stream gets there."""
        assert any(context is self for context in self.library.contexts), "the context is gone"
        assert self.profile is not None
        cuda = self.library.cuda

        def view(spec: TensorSpec) -> Any:
            size = math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
            return cuda.resolve(addresses[spec.name], size).view(spec.dtype).reshape(spec.shape)

        cuda.resolve(*memory)[:] = 0xFF  # kernels write all over their scratch memory
        feeds = {name: view(spec) for name, spec in self.engine.inputs[self.profile].items()}
        outputs = self.engine.outputs[self.profile]
        for name, value in zip(outputs, self.engine.session.run(list(outputs), feeds), strict=True):
            view(outputs[name])[...] = value

    def _check_overlap(self) -> None:
        spans = sorted(
            (self.addresses[name], self.addresses[name] + _bytes(spec))
            for name, spec in self._specs().items()
        )
        for (_, end), (start, _) in itertools.pairwise(spans):
            assert end <= start, "tensors overlap"

    def _specs(self) -> dict[str, TensorSpec]:
        assert self.profile is not None
        return self.engine.inputs[self.profile] | self.engine.outputs[self.profile]

    def _shaped(self) -> bool:
        assert self.profile is not None
        return self.shapes.keys() == self.engine.inputs[self.profile].keys()

    def _refuse(self, reason: str) -> bool:
        self.engine.log.log(Severity.ERROR, reason)
        return False


def _bytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * np.dtype(spec.dtype).itemsize


def _by_name(specs: Sequence[TensorSpec]) -> dict[str, TensorSpec]:
    return {spec.name: spec for spec in specs}


@functools.cache
def _session(graph: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
