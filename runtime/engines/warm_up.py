"""Runs instances ahead of a decode: what is compiled, captured or packed at first use is done."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..contract import Instance
from .protocol import DecodeState


def warm_up(state: DecodeState, shapes: Iterable[Instance]) -> None:
    """Run each shape once on an empty step; the cache is forgotten."""
    for shape in shapes:
        state.reset()
        inputs = state.inputs(shape)
        for view in vars(inputs).values():
            view[...] = 0
        np.fill_diagonal(inputs.isolation_mask, True)
        inputs.temperature[:] = 1
        state.run(shape)
    state.reset()
