"""Memory of a TensorRT engine: its blocks, and the host areas that feed it.

All host inputs of a step lie in one page-locked area laid out like the device block, so that one
copy carries them; head outputs come back the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import numpy as np
from numpy.typing import NDArray

from ..cuda import Cuda
from ..packing import Packing

AREAS = 3  # one in flight, one for each move of the window that is prepared meanwhile


class Memory:
    """Device and page-locked blocks of one engine, freed together."""

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._device: list[int] = []
        self._pinned: list[NDArray[np.uint8]] = []

    def allocate(self, size: int) -> int:
        """Allocate device memory and return its address."""
        self._device.append(self._cuda.allocate(size))
        return self._device[-1]

    def allocate_pinned(self, size: int) -> NDArray[np.uint8]:
        """Allocate page-locked host memory."""
        self._pinned.append(self._cuda.allocate_pinned(size))
        return self._pinned[-1]

    def free(self) -> None:
        """Free every block; the device must be done with them."""
        while self._device:
            self._cuda.free(self._device.pop())
        while self._pinned:
            self._cuda.free_pinned(self._pinned.pop())


class InputAreas:
    """Host areas of one instance; the current one is uploaded by the next run.

    An area remembers the layout it was prepared for. One that is in flight is never handed out.
    """

    def __init__(self, packing: Packing, allocate: Callable[[int], NDArray[np.uint8]]) -> None:
        memory = allocate(AREAS * packing.size)
        self._areas = [memory[index * packing.size :][: packing.size] for index in range(AREAS)]
        self.views = [packing.views(area) for area in self._areas]
        self._layouts: list[Hashable] = [None] * AREAS
        self._used = list(range(AREAS))  # least recently used first
        self._current = 0

    @property
    def address(self) -> int:
        """Host address of the current area."""
        return int(self._areas[self._current].ctypes.data)

    def fill(self) -> int:
        """Index of the current area, which the caller will write as it likes."""
        self._layouts[self._current] = None
        return self._current

    def prepare(self, layout: Hashable) -> int | None:
        """Index of a spare area to write `layout` into; None if some area holds it already."""
        if layout in self._layouts:
            self._touch(self._layouts.index(layout))
            return None
        index = next(index for index in self._used if index != self._current)
        self._layouts[index] = layout
        self._touch(index)
        return index

    def take(self, layout: Hashable) -> int | None:
        """Make the area that holds `layout` the current one; None if there is none."""
        if layout not in self._layouts:
            return None
        self._current = self._layouts.index(layout)
        self._touch(self._current)
        return self._current

    def _touch(self, index: int) -> None:
        self._used.remove(index)
        self._used.append(index)
