"""Tensors packed into one block of bytes, so that one copy carries all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contract import TensorSpec

ALIGNMENT = 256  # bytes; what TensorRT asks of tensor addresses, and more than any dtype needs


@dataclass(frozen=True)
class Packing:
    """Where each tensor lies in a block of `size` bytes."""

    specs: tuple[TensorSpec, ...]
    offsets: dict[str, int]
    size: int

    @classmethod
    def of(cls, specs: Sequence[TensorSpec]) -> Packing:
        """Lay the tensors one after the other at aligned offsets."""
        offsets, size = {}, 0
        for spec in specs:
            offsets[spec.name] = size
            size += -(-spec.bytes // ALIGNMENT) * ALIGNMENT
        return cls(tuple(specs), offsets, size)

    def addresses(self, base: int) -> dict[str, int]:
        """Address of every tensor in the block that begins at `base`."""
        return {name: base + offset for name, offset in self.offsets.items()}

    def views(self, memory: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Host views of every tensor in `memory`."""
        return {
            spec.name: memory[self.offsets[spec.name] :][: spec.bytes]
            .view(spec.dtype)
            .reshape(spec.shape)
            for spec in self.specs
        }
