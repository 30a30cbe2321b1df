"""The CUDA runtime through cuda-python, every call checked."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contract import LopaError

# What to do about some faults.
_ADVICE = {
    "cudaErrorMemoryAllocation": "; free memory of the GPU, use --low-memory, or build smaller "
    "instances",
}


class CudaError(LopaError):
    """A call of the CUDA runtime that failed, with the name it gives the fault."""


@dataclass(frozen=True)
class Gpu:
    """One device: `compute_capability` 89 stands for SM 8.9, memory in bytes."""

    index: int
    name: str
    compute_capability: int
    memory: int


class Cuda:
    """Streams, memory, copies and graphs of one process; addresses are integers.

    Copies and launches are asynchronous: they happen in the order of their stream, and host memory
    they use must stay as it is until `synchronize`.
    """

    def __init__(self) -> None:
        try:
            self._api: Any = importlib.import_module("cuda.bindings.runtime")
        except ImportError:
            raise LopaError(
                "cuda-python is not installed; install it with: pip install 'lopa[tensorrt]' "
                "(or 'lopa[tensorrt-rtx]')"
            ) from None

    def versions(self) -> tuple[str, str]:
        """CUDA version of the runtime and the newest the driver serves; "0.0" without a driver."""
        found = (self._call("cudaRuntimeGetVersion"), self._call("cudaDriverGetVersion"))
        return tuple(f"{number // 1000}.{number % 1000 // 10}" for number in found)  # type: ignore[return-value]

    def gpus(self) -> tuple[Gpu, ...]:
        """Every device of this machine; raises CudaError where there is no driver."""
        return tuple(self._gpu(index) for index in range(self._call("cudaGetDeviceCount")))

    def stream(self) -> int:
        """Make a stream that does not wait for the default stream."""
        flags = self._api.cudaStreamNonBlocking
        return int(self._call("cudaStreamCreateWithFlags", flags))

    def destroy_stream(self, stream: int) -> None:
        """Free a stream."""
        self._call("cudaStreamDestroy", stream)

    def synchronize(self, stream: int) -> None:
        """Wait until everything put on `stream` has happened."""
        self._call("cudaStreamSynchronize", stream)

    def elapsed(self, work: Callable[[], object], stream: int) -> float:
        """Milliseconds on the device from before to after what `work` puts on `stream`."""
        start, end = self._call("cudaEventCreate"), self._call("cudaEventCreate")
        self._call("cudaEventRecord", start, stream)
        work()
        self._call("cudaEventRecord", end, stream)
        self._call("cudaEventSynchronize", end)
        found = float(self._call("cudaEventElapsedTime", start, end))
        for event in (start, end):
            self._call("cudaEventDestroy", event)
        return found

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes of device memory, 256-byte aligned, and return the address."""
        return int(self._call("cudaMalloc", size))

    def free(self, address: int) -> None:
        """Free device memory."""
        self._call("cudaFree", address)

    def allocate_pinned(self, size: int) -> NDArray[np.uint8]:
        """Allocate `size` bytes of page-locked host memory; freed by `free_pinned` alone."""
        address = int(self._call("cudaMallocHost", size))
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def free_pinned(self, memory: NDArray[np.uint8]) -> None:
        """Free page-locked host memory; no view of it may be used again."""
        self._call("cudaFreeHost", memory.ctypes.data)

    def clear(self, address: int, size: int, stream: int) -> None:
        """Set `size` bytes to zero."""
        self._call("cudaMemsetAsync", address, 0, size, stream)

    def upload(self, target: int, source: int, size: int, stream: int) -> None:
        """Copy bytes from the host to the device."""
        kind = self._api.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._call("cudaMemcpyAsync", target, source, size, kind, stream)

    def download(self, target: int, source: int, size: int, stream: int) -> None:
        """Copy bytes from the device to the host."""
        kind = self._api.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self._call("cudaMemcpyAsync", target, source, size, kind, stream)

    def copy_rows(
        self, target: tuple[int, int], source: tuple[int, int], width: int, rows: int, stream: int
    ) -> None:
        """Copy `rows` runs of `width` bytes on the device; ends are (address, bytes apart)."""
        kind = self._api.cudaMemcpyKind.cudaMemcpyDeviceToDevice
        self._call("cudaMemcpy2DAsync", *target, *source, width, rows, kind, stream)

    def begin_capture(self, stream: int) -> None:
        """Record what is put on `stream`; other threads may go on allocating."""
        mode = self._api.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", stream, mode)

    def end_capture(self, stream: int) -> Any:
        """End recording and return the graph; raises CudaError when it was invalidated."""
        code, graph = self._api.cudaStreamEndCapture(stream)
        if int(code):
            if graph is not None and int(graph):
                self._api.cudaGraphDestroy(graph)
            raise self._error("cudaStreamEndCapture", code)
        return graph

    def instantiate(self, graph: Any) -> Any:
        """Turn a recorded graph into one that can be launched; `graph` is freed."""
        try:
            return self._call("cudaGraphInstantiate", graph, 0)
        finally:
            self._api.cudaGraphDestroy(graph)

    def destroy_graph(self, graph: Any) -> None:
        """Free a recorded graph that is not wanted."""
        self._call("cudaGraphDestroy", graph)

    def launch(self, executable: Any, stream: int) -> None:
        """Replay a graph on `stream`."""
        self._call("cudaGraphLaunch", executable, stream)

    def destroy_executable(self, executable: Any) -> None:
        """Free a graph made by `instantiate`."""
        self._call("cudaGraphExecDestroy", executable)

    def forget_error(self) -> None:
        """Clear the error that the runtime keeps of a failed capture."""
        self._api.cudaGetLastError()

    def _gpu(self, index: int) -> Gpu:
        attributes = self._api.cudaDeviceAttr
        major, minor = (
            self._call("cudaDeviceGetAttribute", attribute, index)
            for attribute in (
                attributes.cudaDevAttrComputeCapabilityMajor,
                attributes.cudaDevAttrComputeCapabilityMinor,
            )
        )
        properties = self._call("cudaGetDeviceProperties", index)
        name = properties.name
        if isinstance(name, bytes):
            name = name.split(b"\0", 1)[0].decode()
        return Gpu(index, str(name), major * 10 + minor, int(properties.totalGlobalMem))

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call the runtime; returns its one value, or None."""
        code, *values = getattr(self._api, name)(*arguments)
        if int(code):
            raise self._error(name, code)
        return values[0] if values else None

    def _error(self, name: str, code: Any) -> CudaError:
        _, title = self._api.cudaGetErrorName(code)
        _, text = self._api.cudaGetErrorString(code)
        advice = _ADVICE.get(_text(title), "")
        return CudaError(f"{name} failed with {_text(title)} ({int(code)}): {_text(text)}{advice}")


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
