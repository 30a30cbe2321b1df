"""Runs instances ahead of a decode: what is compiled, captured or packed at first use is done."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..contract import Instance
from .protocol import Engine


def warm_up(engine: Engine, shapes: Iterable[Instance]) -> None:
    """Run each shape once on an empty step; the cache is forgotten."""
    for shape in shapes:
        engine.reset()
        inputs = engine.inputs(shape)
        for view in vars(inputs).values():
            view[...] = 0
        np.fill_diagonal(inputs.isolation_mask, True)
        inputs.temperature[:] = 1
        engine.run(shape)
    engine.reset()
