"""The key/value cache of a TensorRT engine: on the device, at one address for every instance."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..cuda import Cuda
from .buffers import Memory


class DeviceCache:
    """Keys and values [P, C, D] (P = layers * kv heads), allocated once for the largest C.

    Every context size uses the same two addresses, so captured graphs never go stale; what changes
    with C is the distance between planes. Growing spreads the planes through a scratch block.
    Slots not written yet hold finite values, which the cache mask hides.
    """

    def __init__(
        self,
        cuda: Cuda,
        memory: Memory,
        stream: int,
        contexts: tuple[int, ...],
        planes: int,
        slot_bytes: int,
    ) -> None:
        """Allocate and clear; `slot_bytes` are the bytes of one slot in one plane."""
        self._cuda, self._stream = cuda, stream
        self._planes, self._slot = planes, slot_bytes
        self.size = planes * max(contexts) * slot_bytes  # of each of the two
        self.keys, self.values = memory.allocate(self.size), memory.allocate(self.size)
        for address in (self.keys, self.values):
            cuda.clear(address, self.size, stream)
        scratch = planes * scratch_context(contexts) * slot_bytes
        self._scratch = memory.allocate(scratch) if scratch else 0
        self.context = 0

    def reset(self) -> None:
        """Forget the contents."""
        self.context = 0

    def reserve(self, context: int) -> None:
        """Lay the cache out for `context` slots, keeping its contents; it never shrinks."""
        if context <= self.context:
            return
        if self.context:
            before, after = self.context * self._slot, context * self._slot
            for address in (self.keys, self.values):
                # In place the planes would overwrite one another.
                self._copy((self._scratch, before), (address, before), before)
                self._copy((address, after), (self._scratch, before), before)
        self.context = context

    def commit(
        self,
        windows: tuple[int, int],
        window_rows: int,
        rows: NDArray[np.intp],
        slots: NDArray[np.intp],
    ) -> None:
        """Copy rows [n] of the window keys and values [P, N, D] to slots [n].

        `windows` are their addresses and `window_rows` is N. One copy per run of neighbours.
        """
        for row, slot, count in runs(rows, slots):
            for cache, window in zip((self.keys, self.values), windows, strict=True):
                self._copy(
                    (cache + slot * self._slot, self.context * self._slot),
                    (window + row * self._slot, window_rows * self._slot),
                    count * self._slot,
                )

    def _copy(self, target: tuple[int, int], source: tuple[int, int], width: int) -> None:
        self._cuda.copy_rows(target, source, width, self._planes, self._stream)


def scratch_context(contexts: tuple[int, ...]) -> int:
    """Slots of the largest cache that can still grow: the largest context but one, or 0."""
    smaller = sorted(set(contexts))[:-1]
    return smaller[-1] if smaller else 0


def runs(rows: NDArray[np.intp], slots: NDArray[np.intp]) -> list[tuple[int, int, int]]:
    """Split pairs of row and slot into (first row, first slot, count) of consecutive ones."""
    breaks = np.flatnonzero((np.diff(rows) != 1) | (np.diff(slots) != 1)) + 1
    return [
        (int(rows[part[0]]), int(slots[part[0]]), len(part))
        for part in np.split(np.arange(len(rows)), breaks)
        if len(part)
    ]
