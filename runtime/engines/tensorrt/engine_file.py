"""A deserialised TensorRT engine: execution contexts, and a check of its tensors."""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...contract import INPUT_NAMES, OUTPUT_NAMES, ContractError, LopaError, TensorSpec
from ...engine_check import ReportedTensor, check_tensors
from ...engine_info import EngineStamp
from ..status import EngineWarning
from .kernel_cache import RuntimeCacheFile
from .library import Product

# What the library calls a type -> NumPy dtype name.
_DATA_TYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT8": "int8",
    "INT32": "int32",
    "BOOL": "bool",
}
# What the library's check of an engine finds -> what it means and what to do.
_INVALID = {
    "VERSION_MISMATCH": "another version of the library built it, build it again",
    "UNSUPPORTED_CC": "it has no kernels for this GPU, build it again with its --sm",
    "OLD_CUDA_DRIVER": "the NVIDIA driver is too old for it, update the driver",
    "OLD_CUDA_RUNTIME": "the CUDA runtime is too old for it, update the library",
    "INSUFFICIENT_GPU_MEMORY": "the GPU has too little memory, build smaller instances",
    "MALFORMED_ENGINE": "it is damaged or not an engine of this library, build it again",
    "CUDA_ERROR": "a CUDA call failed",
}


class EngineFile:
    """The engine of a bundle, from which any number of contexts is made."""

    def __init__(
        self,
        library: Any,
        product: Product,
        log: Any,
        path: Path,
        stamp: EngineStamp,
        cache_file: RuntimeCacheFile,
    ) -> None:
        """Deserialise `path`; raises LopaError with the reason the library gives."""
        self._library, self._product, self._log, self._path = library, product, log, path
        self._cache_file = cache_file
        self._runtime = library.Runtime(log)
        # Such engines bring the code that runs them.
        self._runtime.engine_host_code_allowed = stamp.version_compatible
        title = f"{product.title} {library.__version__}"
        if not path.stat().st_size:
            raise LopaError(f"{path} is empty; build it again")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
            if product.checks_engines:
                self._check_validity(title, plan)
            self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise LopaError(f"{title} cannot load {path}: {log.take()}; build it again")
        if self._engine.name != stamp.graph_sha256:
            raise ContractError(
                f"{path} is the engine of another model: it was built from graph "
                f"{self._engine.name[:12]!r}, the manifest says {stamp.graph_sha256[:12]!r}; "
                "build it again"
            )
        names = {self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)}
        if names != {*INPUT_NAMES, *OUTPUT_NAMES}:
            found = ", ".join(sorted(names))
            raise ContractError(f"{path} has the tensors {found}, not those of a step")
        self._settings = self._context_settings()

    def activation_bytes(self, profiles: Sequence[int]) -> int:
        """Activation memory of the largest of the profiles."""
        sizes = [int(self._engine.get_device_memory_size_for_profile_v2(i)) for i in profiles]
        return max(sizes)

    def context(
        self,
        profile: int,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        activations: tuple[int, int],
        stream: int,
    ) -> Any:
        """Make the context of a profile for exactly these tensors; raises ContractError.

        `activations` are address and size of a block that contexts may share whose steps follow
        each other on one stream.
        """
        if profile >= self._engine.num_optimization_profiles:
            raise ContractError(
                f"{self._path} has {self._engine.num_optimization_profiles} profiles, "
                f"the manifest speaks of {profile + 1}"
            )
        context = self._engine.create_execution_context(self._settings)
        if context is None or not context.set_optimization_profile_async(profile, stream):
            raise LopaError(f"{self._path}: no context for profile {profile}: {self._log.take()}")
        refused = [spec for spec in inputs if not context.set_input_shape(spec.name, spec.shape)]
        if refused:
            shapes = ", ".join(f"{spec.name} of shape {list(spec.shape)}" for spec in refused)
            raise ContractError(
                f"{self._path}: profile {profile} takes no {shapes}: {self._log.take()}; "
                "it is the engine of another model"
            )
        shape = f"profile {profile}"
        check_tensors(str(self._path), self._tensors(context), {shape: (*inputs, *outputs)})
        context.set_device_memory(*activations)
        return context

    def save_cache(self) -> None:
        """Write what the library compiled for this GPU to its file."""
        if self._product.own_graphs:
            self._cache_file.save(bytes(self._runtime_cache.serialize()))

    def _check_validity(self, title: str, plan: Any) -> None:
        """Ask the library whether it can run this engine here; it reads the header alone."""
        validity, found = self._runtime.get_engine_validity(plan)
        kinds = self._library.EngineInvalidityDiagnostics
        said = [text for name, text in _INVALID.items() if int(getattr(kinds, name)) & int(found)]
        reason = "; ".join(said)
        if validity == self._library.EngineValidity.INVALID:
            reason = "; ".join([*said, *self._log.errors]) or "it gives no reason"
            raise LopaError(f"{title} cannot run {self._path} here: {reason}")
        if validity == self._library.EngineValidity.SUBOPTIMAL:
            warnings.warn(
                f"{title} can run {self._path} here, but not at full speed"
                + (f": {reason}" if reason else ""),
                EngineWarning,
                stacklevel=2,
            )

    def _tensors(self, context: Any) -> list[ReportedTensor]:
        """The engine's tensors at the shapes that `context` was given."""
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        return [
            ReportedTensor(
                name,
                _numpy_name(self._engine.get_tensor_dtype(name)),
                tuple(None if dim < 0 else int(dim) for dim in context.get_tensor_shape(name)),
            )
            for name in names
        ]

    def _context_settings(self) -> Any:
        """What contexts are made with: activation memory is ours; own graphs are turned on."""
        strategy = self._library.ExecutionContextAllocationStrategy.USER_MANAGED
        if not self._product.own_graphs:
            return strategy
        settings = self._engine.create_runtime_config()
        settings.set_execution_context_allocation_strategy(strategy)
        settings.cuda_graph_strategy = self._library.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
        self._runtime_cache = settings.create_runtime_cache()
        if kept := self._cache_file.load():
            self._runtime_cache.deserialize(kept)  # refused, and left empty, when it is stale
            self._log.errors.clear()
        settings.set_runtime_cache(self._runtime_cache)
        return settings


def _numpy_name(dtype: Any) -> str:
    name = str(dtype).rpartition(".")[2]
    return _DATA_TYPES.get(name, name)
