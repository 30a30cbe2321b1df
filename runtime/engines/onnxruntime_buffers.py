"""Where the tensors of an ONNX Runtime engine live: host arrays, or values on a device.

On a device every tensor keeps its address, so that captured CUDA graphs stay valid. The key/value
cache lives with the other tensors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..contract import TensorSpec


@dataclass(frozen=True)
class Slot:
    """One bound tensor: a host array, a device value, or a device value with its host mirror."""

    host: NDArray[Any] | None
    device: Any = None

    @property
    def address(self) -> int:
        """Address the engine reads or writes."""
        if self.device is not None:
            return int(self.device.data_ptr())
        assert self.host is not None
        return int(self.host.ctypes.data)

    def upload(self) -> None:
        """Copy the host mirror to the device."""
        if self.device is not None and self.host is not None:
            self.device.update_inplace(self.host)

    def download(self) -> None:
        """Copy the device value to the host mirror."""
        if self.device is not None and self.host is not None:
            self.host[...] = self.device.numpy()

    def write(self, values: NDArray[Any]) -> None:
        """Replace the contents."""
        if self.device is not None:
            self.device.update_inplace(np.ascontiguousarray(values))
        if self.host is not None:
            self.host[...] = values

    def read(self) -> NDArray[Any]:
        """Current contents on the host."""
        if self.device is not None:
            return np.asarray(self.device.numpy())
        assert self.host is not None
        return self.host


class Buffers(Protocol):
    """Storage of one engine; slots of an earlier `generation` may be out of date."""

    generation: int

    def tensor(self, spec: TensorSpec, mirrored: bool) -> Slot:
        """Storage for an input or output; `mirrored`: the host reads or writes it."""

    def cache(self, spec: TensorSpec) -> Slot:
        """Storage for one cache tensor [L, H, C, D]; the same C always has the same address."""

    def grow(self, before: Slot, after: Slot) -> None:
        """Move the slots of one cache tensor to a larger one."""

    def commit(
        self, cache: Slot, window: Slot, rows: NDArray[np.intp], slots: NDArray[np.intp]
    ) -> None:
        """Copy rows [n] of a window tensor [L, H, N, D] to slots [n] of a cache tensor."""


class HostBuffers:
    """One flat array per tensor; all shapes are views of it.

    An array grows to the largest shape asked for, which starts a new generation. Cache slots that
    were not written yet hold finite leftovers, which the cache mask hides.
    """

    def __init__(self) -> None:
        self._flat: dict[str, NDArray[Any]] = {}
        self.generation = 0

    def tensor(self, spec: TensorSpec, mirrored: bool) -> Slot:
        """Return a view of the flat array."""
        size = math.prod(spec.shape)
        flat = self._flat.get(spec.name)
        if flat is None or flat.size < size:
            flat = self._flat[spec.name] = np.zeros(size, spec.dtype)
            self.generation += 1
        return Slot(flat[:size].reshape(spec.shape))

    def cache(self, spec: TensorSpec) -> Slot:
        """Return a view of the flat array."""
        return self.tensor(spec, mirrored=True)

    def grow(self, before: Slot, after: Slot) -> None:
        """Spread the slots out; both may be views of one array, so they are copied first."""
        kept = before.read().copy()
        after.read()[:, :, : kept.shape[2]] = kept

    def commit(
        self, cache: Slot, window: Slot, rows: NDArray[np.intp], slots: NDArray[np.intp]
    ) -> None:
        """Copy between the arrays."""
        cache.read()[:, :, as_span(slots)] = window.read()[:, :, as_span(rows)]


class DeviceBuffers:
    """OrtValues on a device; commits run there, by the bundle's commit graph."""

    def __init__(self, library: Any, provider: str, commit_session: Any) -> None:
        self._library, self._provider = library, provider
        self._session = commit_session
        self.generation = 0
        self._caches: dict[tuple[str, tuple[int, ...]], Slot] = {}

    def tensor(self, spec: TensorSpec, mirrored: bool) -> Slot:
        """Allocate a value on the device and its mirror."""
        host = np.zeros(spec.shape, spec.dtype) if mirrored else None
        return Slot(host, self._value(spec))

    def cache(self, spec: TensorSpec) -> Slot:
        """Allocate on first use; a captured graph reads this address again."""
        key = (spec.name, spec.shape)
        if key not in self._caches:
            self._caches[key] = Slot(None, self._value(spec))
        return self._caches[key]

    def grow(self, before: Slot, after: Slot) -> None:
        """Copy through the host: it happens a few times in a decode at most."""
        larger = after.read().copy()
        kept = before.read()
        larger[:, :, : kept.shape[2]] = kept
        after.device.update_inplace(larger)

    def commit(
        self, cache: Slot, window: Slot, rows: NDArray[np.intp], slots: NDArray[np.intp]
    ) -> None:
        """Run the commit graph with its output bound to the cache itself."""
        context = cache.device.shape()[2]
        source = np.arange(context, dtype=np.int64)
        source[slots] = context + rows
        binding = self._session.io_binding()
        binding.bind_ortvalue_input("cache", cache.device)
        binding.bind_ortvalue_input("window", window.device)
        binding.bind_cpu_input("source", source)
        binding.bind_ortvalue_output("committed", cache.device)
        self._session.run_with_iobinding(binding)

    def _value(self, spec: TensorSpec) -> Any:
        blank = np.zeros(spec.shape, spec.dtype)
        return self._library.OrtValue.ortvalue_from_numpy(blank, self._provider, 0)


def as_span(indices: NDArray[np.intp]) -> slice | NDArray[np.intp]:
    """Return the slice that equals ascending consecutive `indices`, else the indices."""
    if len(indices) and np.array_equal(indices, np.arange(indices[0], indices[0] + len(indices))):
        return slice(int(indices[0]), int(indices[-1]) + 1)
    return indices
