"""A double of `cuda.bindings.runtime`: one GPU whose memory is arrays at made-up addresses.

It is as strict as the documentation of the real thing. What is put on a stream happens when the
host waits for the stream, not before, so a missing wait or a buffer written too early gives wrong
results. Fresh device memory holds NaN patterns. Every call can be told to fail.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Operation = Callable[[], None]
FIRST_ADDRESS = 0x7F00_0000_0000
GAP = 1 << 20  # between allocations: copies that run over an end are found


class Error(enum.IntEnum):
    cudaSuccess = 0  # noqa: N815
    cudaErrorInvalidValue = 1  # noqa: N815
    cudaErrorMemoryAllocation = 2  # noqa: N815
    cudaErrorNoDevice = 100  # noqa: N815
    cudaErrorInvalidResourceHandle = 400  # noqa: N815
    cudaErrorStreamCaptureUnsupported = 900  # noqa: N815
    cudaErrorStreamCaptureInvalidated = 901  # noqa: N815


class Kind(enum.IntEnum):
    cudaMemcpyHostToDevice = 1  # noqa: N815
    cudaMemcpyDeviceToHost = 2  # noqa: N815
    cudaMemcpyDeviceToDevice = 3  # noqa: N815


@dataclass
class Stream:
    """Pending work, and what is being captured, if anything."""

    pending: list[Operation] = field(default_factory=list)
    captured: list[Operation] | None = None
    invalidated: bool = False


class CudaDouble:
    """The module, and the GPU behind it; `calls` lists the names of all calls in order."""

    cudaStreamNonBlocking = 1  # noqa: N815
    cudaMemcpyKind = Kind  # noqa: N815
    cudaStreamCaptureMode = SimpleNamespace(cudaStreamCaptureModeThreadLocal=1)  # noqa: N815
    cudaDeviceAttr = SimpleNamespace(  # noqa: N815
        cudaDevAttrComputeCapabilityMajor=75, cudaDevAttrComputeCapabilityMinor=76
    )

    def __init__(self, compute_capability: int = 89) -> None:
        self.compute_capability = compute_capability
        self.device: dict[int, NDArray[np.uint8]] = {}
        self.pinned: dict[int, NDArray[np.uint8]] = {}
        self.streams: dict[int, Stream] = {}
        self.graphs: dict[int, list[Operation]] = {}
        self.executables: dict[int, list[Operation]] = {}
        self.events: dict[int, float | None] = {}
        self.clock = 0.0  # milliseconds; every operation on a stream takes one
        self.calls: list[str] = []
        self.failures: dict[str, int] = {}  # name of a call -> how many calls until it fails
        self.fault = Error.cudaErrorInvalidValue  # what a failing call returns
        self.uploaded: list[int] = []  # bytes of each copy between host and device
        self.downloaded: list[int] = []
        self._next = 1
        self._address = FIRST_ADDRESS

    # What tests and the library double ask.

    def resolve(self, address: int, size: int) -> NDArray[np.uint8]:
        """View of device memory; the whole range must lie in one live allocation."""
        for base, memory in self.device.items():
            if base <= address and address + size <= base + len(memory):
                return memory[address - base :][:size]
        raise AssertionError(f"device access to {address:#x}, {size} bytes, outside of allocations")

    def enqueue(self, handle: int, operation: Operation) -> None:
        """Put work on a stream, or into the graph that is being captured there."""
        stream = self.streams[int(handle)]
        (stream.pending if stream.captured is None else stream.captured).append(operation)

    def capturing(self, handle: int) -> bool:
        return self.streams[int(handle)].captured is not None

    def invalidate(self, handle: int) -> None:
        """Spoil the capture of a stream, as a forbidden call does."""
        self.streams[int(handle)].invalidated = True

    def used(self) -> Counter[str]:
        """What is still allocated."""
        return Counter(
            device=len(self.device),
            pinned=len(self.pinned),
            streams=len(self.streams),
            graphs=len(self.graphs),
            executables=len(self.executables),
        )

    # The module's functions.

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if not (name.startswith("cuda") and callable(value)) or isinstance(value, type):
            return value

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            left = self.failures.get(name)
            if left is not None:
                self.failures[name] = left - 1
                if left == 0:
                    if name == "cudaStreamEndCapture":
                        self.streams[int(arguments[0])].captured = None
                    return self.fault, None
            result: tuple[Any, ...] = value(*arguments)
            return result

        return call

    def cudaGetErrorName(self, code: Error) -> tuple[Error, bytes]:  # noqa: N802
        return Error.cudaSuccess, Error(code).name.encode()

    def cudaGetErrorString(self, code: Error) -> tuple[Error, bytes]:  # noqa: N802
        return Error.cudaSuccess, b"what the double says"

    def cudaGetLastError(self) -> tuple[Error]:  # noqa: N802
        return (Error.cudaSuccess,)

    def cudaRuntimeGetVersion(self) -> tuple[Error, int]:  # noqa: N802
        return Error.cudaSuccess, 13050

    def cudaDriverGetVersion(self) -> tuple[Error, int]:  # noqa: N802
        return Error.cudaSuccess, 13010

    def cudaGetDeviceCount(self) -> tuple[Error, int]:  # noqa: N802
        return Error.cudaSuccess, 1

    def cudaDeviceGetAttribute(self, attribute: int, index: int) -> tuple[Error, int]:  # noqa: N802
        major, minor = divmod(self.compute_capability, 10)
        return Error.cudaSuccess, {75: major, 76: minor}[attribute]

    def cudaGetDeviceProperties(self, index: int) -> tuple[Error, Any]:  # noqa: N802
        return Error.cudaSuccess, SimpleNamespace(name=b"Double GPU\0\0", totalGlobalMem=8 << 30)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[Error, int]:  # noqa: N802
        assert flags == self.cudaStreamNonBlocking
        return Error.cudaSuccess, self._handle(self.streams, Stream())

    def cudaStreamDestroy(self, handle: int) -> tuple[Error]:  # noqa: N802
        assert not self.streams[int(handle)].pending, "destroyed while in use"
        return self._drop(self.streams, handle)

    def cudaStreamSynchronize(self, handle: int) -> tuple[Error]:  # noqa: N802
        if self._forbidden_in_capture():
            return (Error.cudaErrorStreamCaptureUnsupported,)
        pending = self.streams[int(handle)].pending
        while pending:
            pending.pop(0)()
            self.clock += 1.0
        return (Error.cudaSuccess,)

    def cudaMalloc(self, size: int) -> tuple[Error, int | None]:  # noqa: N802
        if self._forbidden_in_capture():
            return Error.cudaErrorStreamCaptureUnsupported, None
        address = self._address
        self._address += -(-size // GAP) * GAP + GAP
        self.device[address] = np.full(size, 0xFF, np.uint8)
        return Error.cudaSuccess, address

    def cudaFree(self, address: int) -> tuple[Error]:  # noqa: N802
        return self._drop(self.device, address)  # work that is still to come cannot resolve it

    def cudaMallocHost(self, size: int) -> tuple[Error, int | None]:  # noqa: N802
        if self._forbidden_in_capture():
            return Error.cudaErrorStreamCaptureUnsupported, None
        memory = np.full(size, 0xFF, np.uint8)
        self.pinned[memory.ctypes.data] = memory
        return Error.cudaSuccess, memory.ctypes.data

    def cudaFreeHost(self, address: int) -> tuple[Error]:  # noqa: N802
        return self._drop(self.pinned, address)

    def cudaMemsetAsync(  # noqa: N802
        self, address: int, value: int, size: int, handle: int
    ) -> tuple[Error]:
        self.enqueue(handle, lambda: self.resolve(address, size).fill(value))
        return (Error.cudaSuccess,)

    def cudaMemcpyAsync(  # noqa: N802
        self, target: int, source: int, size: int, kind: Kind, handle: int
    ) -> tuple[Error]:
        if kind is Kind.cudaMemcpyHostToDevice:
            self.uploaded.append(size)
            host = self._host(source, size)

            def copy() -> None:
                self.resolve(target, size)[:] = host
        else:
            assert kind is Kind.cudaMemcpyDeviceToHost
            self.downloaded.append(size)
            host = self._host(target, size)

            def copy() -> None:
                host[:] = self.resolve(source, size)

        self.enqueue(handle, copy)
        return (Error.cudaSuccess,)

    def cudaMemcpy2DAsync(  # noqa: N802
        self,
        target: int,
        target_pitch: int,
        source: int,
        source_pitch: int,
        width: int,
        rows: int,
        kind: Kind,
        handle: int,
    ) -> tuple[Error]:
        if width > min(target_pitch, source_pitch) or kind is not Kind.cudaMemcpyDeviceToDevice:
            return (Error.cudaErrorInvalidValue,)

        def copy() -> None:
            into = self._rows(target, target_pitch, width, rows)
            out_of = self._rows(source, source_pitch, width, rows)
            assert not np.may_share_memory(into, out_of), "overlapping copy"
            into[:] = out_of

        self.enqueue(handle, copy)
        return (Error.cudaSuccess,)

    def cudaStreamBeginCapture(self, handle: int, mode: int) -> tuple[Error]:  # noqa: N802
        stream = self.streams[int(handle)]
        assert mode == 1
        assert not stream.pending, "capture began before the stream was idle"
        stream.captured, stream.invalidated = [], False
        return (Error.cudaSuccess,)

    def cudaStreamEndCapture(self, handle: int) -> tuple[Error, int | None]:  # noqa: N802
        stream = self.streams[int(handle)]
        captured, stream.captured = stream.captured, None
        assert captured is not None
        if stream.invalidated:
            return Error.cudaErrorStreamCaptureInvalidated, None
        return Error.cudaSuccess, self._handle(self.graphs, captured)

    def cudaGraphInstantiate(self, graph: int, flags: int) -> tuple[Error, int]:  # noqa: N802
        return Error.cudaSuccess, self._handle(self.executables, list(self.graphs[int(graph)]))

    def cudaGraphDestroy(self, graph: int) -> tuple[Error]:  # noqa: N802
        return self._drop(self.graphs, graph)

    def cudaGraphExecDestroy(self, executable: int) -> tuple[Error]:  # noqa: N802
        assert not any(stream.pending for stream in self.streams.values()), "destroyed while in use"
        return self._drop(self.executables, executable)

    def cudaGraphLaunch(self, executable: int, handle: int) -> tuple[Error]:  # noqa: N802
        operations = self.executables[int(executable)]

        def replay() -> None:
            for operation in operations:
                operation()

        self.enqueue(handle, replay)
        return (Error.cudaSuccess,)

    def cudaEventCreate(self) -> tuple[Error, int]:  # noqa: N802
        return Error.cudaSuccess, self._handle(self.events, None)

    def cudaEventDestroy(self, event: int) -> tuple[Error]:  # noqa: N802
        self.events.pop(int(event))
        return (Error.cudaSuccess,)

    def cudaEventRecord(self, event: int, handle: int) -> tuple[Error]:  # noqa: N802
        self.enqueue(handle, lambda: self.events.update({int(event): self.clock}))
        return (Error.cudaSuccess,)

    def cudaEventSynchronize(self, event: int) -> tuple[Error]:  # noqa: N802
        for handle in self.streams:
            self.cudaStreamSynchronize(handle)
        return (Error.cudaSuccess,)

    def cudaEventElapsedTime(self, start: int, end: int) -> tuple[Error, float]:  # noqa: N802
        first, last = self.events[int(start)], self.events[int(end)]
        assert first is not None
        assert last is not None
        return Error.cudaSuccess, last - first

    def _rows(self, address: int, pitch: int, width: int, rows: int) -> NDArray[np.uint8]:
        memory = self.resolve(address, (rows - 1) * pitch + width)
        return np.lib.stride_tricks.as_strided(memory, (rows, width), (pitch, 1))

    def _host(self, address: int, size: int) -> NDArray[np.uint8]:
        for base, memory in self.pinned.items():
            if base <= address and address + size <= base + len(memory):
                return memory[address - base :][:size]
        # Pageable memory is legal but not asynchronous; the engine uses it for inspection only.
        import ctypes

        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def _forbidden_in_capture(self) -> bool:
        """Whether a capture is going on, which a waiting or allocating call spoils."""
        going_on = [stream for stream in self.streams.values() if stream.captured is not None]
        for stream in going_on:
            stream.invalidated = True
        return bool(going_on)

    def _handle(self, table: dict[int, Any], item: Any) -> int:
        self._next += 1
        table[self._next] = item
        return self._next

    def _drop(self, table: dict[int, Any], handle: int) -> tuple[Error]:
        if table.pop(int(handle), None) is None:
            return (Error.cudaErrorInvalidResourceHandle,)
        return (Error.cudaSuccess,)
