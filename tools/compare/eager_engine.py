"""The checkpoint in eager torch behind the engine protocol: the reference before any export."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...export.backbone import StepModule
from ...export.source import ModelSource
from ...runtime.contract import (
    CACHE_NAMES,
    INPUT_NAMES,
    ContractError,
    Instance,
    input_specs,
    smallest_fit,
)
from ...runtime.engines.protocol import StepInputs, StepOutputs
from ...runtime.engines.status import EngineStatus
from ...runtime.manifest import ModelInfo


class EagerEngine:
    """Runs the step module in float32, at the exact shape of every step (see `Engine`)."""

    def __init__(self, module: StepModule, instances: tuple[Instance, ...]) -> None:
        """Take the shapes to allow from a bundle, so that both decode by the same rules."""
        self._module, self._instances = module, instances
        self._inputs: StepInputs | None = None
        self._shape: Instance | None = None
        self._cache = self._blank(0)
        self._window: tuple[NDArray[Any], NDArray[Any]] | None = None

    @property
    def instances(self) -> tuple[Instance, ...]:
        """Shapes the engine can run."""
        return self._instances

    def shape_for(self, step: Instance) -> Instance:
        """Return the step's own shape; raises ContractError if no instance holds it."""
        if smallest_fit(self._instances, step) is None:
            known = ", ".join(item.name for item in self._instances)
            raise ContractError(f"no instance holds a step of {step.name}; there are {known}")
        return step

    def inputs(self, shape: Instance) -> StepInputs:
        """Return input arrays of `shape`; the cache grows to its slots."""
        missing = shape.context - self._cache[0].shape[2]
        if missing > 0:
            grown = self._blank(missing)
            keys, values = (
                np.concatenate(pair, axis=2) for pair in zip(self._cache, grown, strict=True)
            )
            self._cache = keys, values
        if self._inputs is None or self._shape != shape:
            info = self._module.spec.info
            specs = input_specs(shape, info.layers, info.kv_heads, info.head_dim, "float32")
            arrays = {
                spec.name: np.zeros(spec.shape, spec.dtype)
                for spec in specs
                if spec.name not in CACHE_NAMES
            }
            self._inputs, self._shape = StepInputs(**arrays), shape
        return self._inputs

    @torch.inference_mode()
    def run(self, shape: Instance) -> StepOutputs:
        """Run one step on the current inputs and the cache."""
        assert self._inputs is not None
        tensors = {
            **vars(self._inputs),
            **{
                name: cache[:, :, : shape.context]
                for name, cache in zip(CACHE_NAMES, self._cache, strict=True)
            },
        }
        outputs = self._module(*(torch.from_numpy(tensors[name]) for name in INPUT_NAMES))
        token_ids, log_probs, entropy, keys, values = (tensor.numpy() for tensor in outputs)
        self._window = keys, values
        return StepOutputs(token_ids, log_probs, entropy)

    def commit(self, rows: NDArray[np.intp], slots: NDArray[np.intp]) -> None:
        """Copy window rows of the last run to cache slots."""
        for cache, window in zip(self._cache, self.window(), strict=True):
            cache[:, :, slots] = window[:, :, rows]

    def reset(self) -> None:
        """Forget the cache contents."""
        self._cache, self._window = self._blank(0), None

    def status(self) -> EngineStatus:
        """Library, device, memory."""
        weights = sum(weight.nbytes for weight in self._module.parameters())
        return EngineStatus(f"torch {torch.__version__}", "cpu", {"weights": weights}, ())

    def window(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Keys and values [L, H, N, D] of the last run."""
        if self._window is None:
            raise ContractError("no step has run since the last reset")
        return self._window

    def cache(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Keys and values [L, H, C, D] of the cache."""
        return self._cache

    def load_cache(self, keys: NDArray[Any], values: NDArray[Any]) -> None:
        """Replace the cache."""
        self._cache = keys.astype(np.float32), values.astype(np.float32)

    def _blank(self, slots: int) -> tuple[NDArray[Any], NDArray[Any]]:
        info: ModelInfo = self._module.spec.info
        shape = (info.layers, info.kv_heads, slots, info.head_dim)
        return np.zeros(shape, np.float32), np.zeros(shape, np.float32)


def load_module(source: ModelSource) -> StepModule:
    """The step module of a checkpoint with its weights, adapter merged, in float32."""
    with torch.device("meta"):
        module = StepModule(source.spec, torch.float32).eval()
    weights = {name: source.weights.read(name) for name in source.weights}
    module.load_state_dict(weights, assign=True)
    return module
