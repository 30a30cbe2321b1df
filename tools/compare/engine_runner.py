"""A polygraphy runner over an engine of the runtime: what is compared is what decodes."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from polygraphy.backend.base import BaseRunner
from polygraphy.common import TensorMetadata

from ...runtime.contract import Instance, LopaError, input_specs
from ...runtime.engines.protocol import TwoPrecisionState
from ...runtime.manifest import BundleManifest
from .feeds import Feed, shape_of
from .recording import ReplayEngine

_UNKNOWN = 3  # stands for a dimension that every feed may choose


class EngineRunner(BaseRunner):  # type: ignore[misc]
    """Runs recorded steps with an engine that is opened on activation.

    Steps are padded to what the engine can run, as in a decode, and the outputs cut back. While
    `fast` is set, the fast graph of a bundle of two precisions runs them.
    """

    fast = False

    def __init__(
        self, open_engine: Callable[[], ReplayEngine], manifest: BundleManifest, name: str
    ) -> None:
        super().__init__(name=name)
        self._open, self._manifest = open_engine, manifest
        self._engine: ReplayEngine | None = None

    def activate_impl(self) -> None:
        """Open the engine; raises LopaError when its cache cannot be filled from outside."""
        engine = self._open()
        if not hasattr(engine, "load_cache"):
            raise LopaError(
                f"recorded steps cannot be run again on target {self._manifest.engine.target}; "
                "use --runner polygraphy"
            )
        self._engine = engine

    def deactivate_impl(self) -> None:
        """Let the engine go."""
        self._engine = None

    def get_input_metadata_impl(self) -> Any:
        """Contract inputs; dimensions that depend on the step are None."""
        info = self._manifest.model
        dims = (info.layers, info.kv_heads, info.head_dim)
        example = Instance(*[_UNKNOWN] * 4)
        other = replace(example, branches=4, window=5, context=6, rows=7)
        dtype = self._manifest.model_dtype
        metadata = TensorMetadata()
        for one, two in zip(
            input_specs(example, *dims, dtype), input_specs(other, *dims, dtype), strict=True
        ):
            shape = tuple(a if a == b else None for a, b in zip(one.shape, two.shape, strict=True))
            metadata.add(one.name, dtype=np.dtype(one.dtype), shape=shape)
        return metadata

    def infer_impl(self, feed_dict: Feed) -> OrderedDict[str, NDArray[Any]]:
        """Run one step; returns the contract outputs in the feed's shape."""
        engine = self._engine
        assert engine is not None
        asked = shape_of(feed_dict)
        engine.reset()
        shape = engine.shape_for(asked)
        rows = _rows(asked, shape)
        self._pack(engine, feed_dict, shape, rows)
        started = time.perf_counter()
        if self.fast:
            assert isinstance(engine, TwoPrecisionState)
            outputs = engine.run_fast(shape)
        else:
            outputs = engine.run(shape)
        self.inference_time = time.perf_counter() - started
        keys, values = engine.window()
        return OrderedDict(
            token_ids=outputs.token_ids[: asked.rows].copy(),
            log_probs=outputs.log_probs[: asked.rows].copy(),
            entropy=outputs.entropy[: asked.rows].copy(),
            window_keys=np.ascontiguousarray(keys[:, :, rows]),
            window_values=np.ascontiguousarray(values[:, :, rows]),
        )

    def _pack(
        self, engine: ReplayEngine, feed: Feed, shape: Instance, rows: NDArray[np.intp]
    ) -> None:
        """Write a feed into the engine; what is padded sees itself and is seen by nobody."""
        asked, info = shape_of(feed), self._manifest.model
        inputs = engine.inputs(shape)
        inputs.input_ids[:] = info.mask_token_id
        inputs.input_ids[: asked.branches, : asked.window] = feed["input_ids"]
        inputs.position_ids[:] = 0
        inputs.position_ids[: asked.branches, : asked.window] = feed["position_ids"]
        inputs.isolation_mask[:] = False
        np.fill_diagonal(inputs.isolation_mask, True)
        inputs.isolation_mask[np.ix_(rows, rows)] = feed["isolation_mask"]
        inputs.cache_mask[:] = False
        inputs.cache_mask[: asked.context] = feed["cache_mask"]
        inputs.head_rows[:] = 0
        inputs.head_rows[: asked.rows] = rows[feed["head_rows"]]
        inputs.temperature[:] = feed["temperature"]
        blank = np.zeros(
            (info.layers, info.kv_heads, shape.context, info.head_dim), self._manifest.model_dtype
        )
        keys, values = blank, blank.copy()
        keys[:, :, : asked.context] = feed["cache_keys"]
        values[:, :, : asked.context] = feed["cache_values"]
        engine.load_cache(keys, values)


def _rows(asked: Instance, shape: Instance) -> NDArray[np.intp]:
    """Flat rows [N] that the rows of a step take in the shape it is padded to."""
    branches = np.arange(asked.branches)[:, None] * shape.window
    rows: NDArray[np.intp] = (branches + np.arange(asked.window)).reshape(-1)
    return rows
