"""Where the tensors of a decode on ONNX Runtime live: host arrays, or values on a device.

On a device every tensor keeps its address, so that captured CUDA graphs stay valid. What the host
sends in a step lies in one block, what it receives in another, and one copy carries each. Keys and
values never leave the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...contract import (
    CACHE_NAMES,
    HEAD_OUTPUT_NAMES,
    HOST_INPUT_NAMES,
    WINDOW_NAMES,
    TensorSpec,
    named,
)
from ...manifest import BundleManifest
from ...memory import decode_memory
from ..packing import Packing

COMMIT_FILE = "commit.onnx"  # the graph of `DeviceBuffers.commit`, in every bundle


@dataclass(frozen=True)
class Block:
    """Tensors that the host writes or reads: where the engine finds them, and the host's views.

    Here both are the same host arrays, and nothing is copied.
    """

    addresses: dict[str, int]
    views: dict[str, NDArray[Any]]

    def upload(self) -> None:
        """Give the engine what the views hold."""

    def download(self) -> None:
        """Have the views hold what the engine wrote."""


@dataclass(frozen=True)
class DeviceBlock(Block):
    """Tensors in one value of bytes on a device; the views lie in a host array of its layout."""

    host: NDArray[np.uint8]
    device: Any

    def upload(self) -> None:
        """Send all tensors in one copy."""
        self.device.update_inplace(self.host)

    def download(self) -> None:
        """Receive all tensors in one copy; the library puts it into an array of its own."""
        self.host[...] = self.device.numpy()


@dataclass(frozen=True)
class Slot:
    """Keys or values of one cache or window: a host array, or a value on a device."""

    host: NDArray[Any] | None = None
    device: Any = None

    @property
    def address(self) -> int:
        """Address the engine reads or writes."""
        if self.host is not None:
            return int(self.host.ctypes.data)
        return int(self.device.data_ptr())

    def write(self, values: NDArray[Any]) -> None:
        """Replace the contents."""
        if self.host is not None:
            self.host[...] = values
        else:
            self.device.update_inplace(np.ascontiguousarray(values))

    def read(self) -> NDArray[Any]:
        """Current contents on the host."""
        return self.host if self.host is not None else np.asarray(self.device.numpy())


Pair = tuple[Slot, Slot]  # keys, values


class Buffers(Protocol):
    """Storage of one decode; what an earlier `generation` gave may be out of date."""

    generation: int

    def block(self, specs: Sequence[TensorSpec]) -> Block:
        """Storage for what the host sends or receives in a step of one shape."""

    def window(self, spec: TensorSpec) -> Slot:
        """Storage for the keys or values [L, H, N, D] that a step of one shape gives."""

    def cache(self, spec: TensorSpec) -> Slot:
        """Storage for one cache tensor [L, H, C, D]; the same C always has the same address."""

    def grow(self, before: Slot, after: Slot) -> None:
        """Move the slots of one cache tensor to a larger one."""

    def commit(
        self, caches: Pair, windows: Pair, rows: NDArray[np.intp], slots: NDArray[np.intp]
    ) -> None:
        """Copy rows [n] of both windows [L, H, N, D] to slots [n] of the caches."""


class HostBuffers:
    """One flat array per tensor; all shapes are views of it.

    An array grows to the largest shape asked for, which starts a new generation. Cache slots that
    were not written yet hold finite leftovers, which the cache mask hides.
    """

    def __init__(self) -> None:
        self._flat: dict[str, NDArray[Any]] = {}
        self.generation = 0

    def block(self, specs: Sequence[TensorSpec]) -> Block:
        """Return views of the flat arrays."""
        views = {spec.name: self._view(spec) for spec in specs}
        return Block({name: int(view.ctypes.data) for name, view in views.items()}, views)

    def window(self, spec: TensorSpec) -> Slot:
        """Return a view of the flat array."""
        return Slot(self._view(spec))

    def cache(self, spec: TensorSpec) -> Slot:
        """Return a view of the flat array."""
        return Slot(self._view(spec))

    def grow(self, before: Slot, after: Slot) -> None:
        """Spread the slots out; both may be views of one array, so they are copied first."""
        kept = before.read().copy()
        after.read()[:, :, : kept.shape[2]] = kept

    def commit(
        self, caches: Pair, windows: Pair, rows: NDArray[np.intp], slots: NDArray[np.intp]
    ) -> None:
        """Copy between the arrays."""
        source, target = as_span(rows), as_span(slots)
        for cache, window in zip(caches, windows, strict=True):
            cache.read()[:, :, target] = window.read()[:, :, source]

    def _view(self, spec: TensorSpec) -> NDArray[Any]:
        size = math.prod(spec.shape)
        flat = self._flat.get(spec.name)
        if flat is None or flat.size < size:
            flat = self._flat[spec.name] = np.zeros(size, spec.dtype)
            self.generation += 1
        return flat[:size].reshape(spec.shape)


class DeviceBuffers:
    """OrtValues on a device, kept for good; commits run there, by the bundle's commit graph."""

    def __init__(self, library: Any, provider: str, commit_session: Any) -> None:
        self._library, self._provider = library, provider
        self._session = commit_session
        self.generation = 0
        self._caches: dict[tuple[str, tuple[int, ...]], Slot] = {}
        self._sources: dict[int, tuple[NDArray[np.int64], Any]] = {}  # by context
        self._commits: dict[tuple[int, int], Any] = {}  # bindings, by cache and window

    def block(self, specs: Sequence[TensorSpec]) -> DeviceBlock:
        """Allocate one value for all tensors, and the host array that mirrors it."""
        packing = Packing.of(specs)
        host = np.zeros(packing.size, np.uint8)
        device = self._value(host.copy())
        addresses = packing.addresses(int(device.data_ptr()))
        return DeviceBlock(addresses, packing.views(host), host, device)

    def window(self, spec: TensorSpec) -> Slot:
        """Allocate a value on the device."""
        return Slot(device=self._value(np.zeros(spec.shape, spec.dtype)))

    def cache(self, spec: TensorSpec) -> Slot:
        """Allocate on first use; a captured graph reads this address again."""
        key = (spec.name, spec.shape)
        if key not in self._caches:
            self._caches[key] = self.window(spec)
        return self._caches[key]

    def grow(self, before: Slot, after: Slot) -> None:
        """Copy through the host: it happens a few times in a decode at most."""
        larger = after.read().copy()
        kept = before.read()
        larger[:, :, : kept.shape[2]] = kept
        after.write(larger)

    def commit(
        self, caches: Pair, windows: Pair, rows: NDArray[np.intp], slots: NDArray[np.intp]
    ) -> None:
        """Run the commit graph with its output bound to the cache itself."""
        context = caches[0].device.shape()[2]
        source, device = self._source(context)
        source[slots] = context + rows
        device.update_inplace(source)
        source[slots] = slots
        for cache, window in zip(caches, windows, strict=True):
            key = (cache.address, window.address)
            if key not in self._commits:
                self._commits[key] = self._binding(cache, window, device)
            self._session.run_with_iobinding(self._commits[key])

    def _source(self, context: int) -> tuple[NDArray[np.int64], Any]:
        """What every slot of a cache receives, at rest itself: on the host and on the device."""
        if context not in self._sources:
            host = np.arange(context, dtype=np.int64)
            self._sources[context] = (host, self._value(host.copy()))
        return self._sources[context]

    def _binding(self, cache: Slot, window: Slot, source: Any) -> Any:
        binding = self._session.io_binding()
        binding.bind_ortvalue_input("cache", cache.device)
        binding.bind_ortvalue_input("window", window.device)
        binding.bind_ortvalue_input("source", source)
        binding.bind_ortvalue_output("committed", cache.device)
        return binding

    def _value(self, contents: NDArray[Any]) -> Any:
        """Put an array on the device; on the CPU the value keeps the array itself."""
        return self._library.OrtValue.ortvalue_from_numpy(contents, self._provider, 0)


def host_memory(manifest: BundleManifest) -> dict[str, int]:
    """Bytes of `HostBuffers` by use, once the largest instances have run."""
    found = decode_memory(manifest)
    return {"cache": found.cache, "windows": found.windows, "inputs and head outputs": found.host}


def device_memory(manifest: BundleManifest) -> dict[str, int]:
    """Bytes on the device of `DeviceBuffers` by use, once every instance has run."""
    caches: dict[int, int] = {}
    windows = blocks = 0
    for instance in manifest.instances:
        inputs, outputs = manifest.tensor_specs(instance)
        caches[instance.context] = sum(spec.bytes for spec in named(inputs, CACHE_NAMES))
        windows += sum(spec.bytes for spec in named(outputs, WINDOW_NAMES))
        blocks += Packing.of(named(inputs, HOST_INPUT_NAMES)).size
        blocks += Packing.of(named(outputs, HEAD_OUTPUT_NAMES)).size
    return {
        "cache": sum(caches.values()),
        "windows": windows,
        "inputs and head outputs": blocks,
    }


def as_span(indices: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """Return the slice that equals ascending consecutive `indices`, else the indices."""
    if len(indices) and np.array_equal(indices, np.arange(indices[0], indices[0] + len(indices))):
        return slice(int(indices[0]), int(indices[-1]) + 1)
    return indices
