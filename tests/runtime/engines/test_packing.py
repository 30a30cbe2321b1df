"""Tensors packed into one block."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from lopa.runtime.contract import TensorSpec
from lopa.runtime.engines.packing import ALIGNMENT, Packing

SHAPES = st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)
KINDS = st.sampled_from(["bool", "int8", "int32", "float16", "float32"])
TENSORS = st.lists(st.tuples(KINDS, SHAPES), min_size=1, max_size=6).map(
    lambda pairs: [TensorSpec(f"t{i}", *pair) for i, pair in enumerate(pairs)]
)


@given(TENSORS)
def test_tensors_are_aligned_and_apart(specs: list[TensorSpec]) -> None:
    packing = Packing.of(specs)
    spans = [(packing.offsets[spec.name], spec.bytes) for spec in specs]
    assert all(start % ALIGNMENT == 0 for start, _ in spans)
    ends = [start + size for start, size in spans]
    assert all(end <= start for end, (start, _) in zip(ends, spans[1:], strict=False))
    assert ends[-1] <= packing.size


@given(TENSORS)
def test_views_lie_where_the_addresses_say(specs: list[TensorSpec]) -> None:
    packing = Packing.of(specs)
    memory = np.zeros(packing.size, np.uint8)
    addresses = packing.addresses(memory.ctypes.data)
    views = packing.views(memory)
    for number, spec in enumerate(specs, start=1):
        view = views[spec.name]
        assert (view.shape, view.dtype.name) == (spec.shape, spec.dtype)
        assert view.ctypes.data == addresses[spec.name]
        view[...] = number
    for number, spec in enumerate(specs, start=1):
        assert (views[spec.name] == np.full((), number).astype(spec.dtype)).all()
