"""Engine libraries behind one protocol; each is imported only when a bundle needs it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast

from ..contract import LopaError
from ..manifest import BundleManifest
from ..targets import TARGETS, Target, load_part
from .protocol import Program
from .status import EngineWarning

MAX_THREADS = 1024


class EngineFolder(Protocol):
    """What `open.py` in the folder of an engine offers; it imports its library when it opens."""

    CUDA_GRAPHS: Mapping[str, str]
    """Of each target: how steps become CUDA graphs, "none" without; `lopa inspect` tells it."""

    def open_engine(
        self,
        folder: Path,
        manifest: BundleManifest,
        *,
        provider: str,
        threads: int,
        strict: bool,
        runtime_cache: Path | None,
    ) -> Program:
        """Load the engine of a bundle and leave what the library has no use for.

        Raises LopaError naming the extra when the library is absent.
        """


def open_engine(
    folder: Path,
    manifest: BundleManifest,
    provider: str,
    threads: int,
    *,
    strict: bool = False,
    runtime_cache: Path | None = None,
) -> Program:
    """Load the engine of a bundle; raises LopaError naming the extra when its library is absent.

    `provider` and `threads` are for ONNX Runtime; TensorRT always runs on the GPU. With `strict` a
    CUDA graph that cannot be captured is an error. `runtime_cache` is the file of compiled kernels
    of targets that compile some; for other bundles it is ignored with a warning.
    """
    if not 0 <= threads <= MAX_THREADS:
        raise LopaError(f"threads is {threads}, expected 0 to {MAX_THREADS}")
    name = manifest.engine.target
    if name not in TARGETS:
        known = ", ".join(TARGETS)
        raise LopaError(f"bundle target {name!r} is not known to this lopa; known: {known}")
    target = TARGETS[name]
    if runtime_cache is not None and not target.compiles:
        compiling = ", ".join(row.name for row in TARGETS.values() if row.compiles)
        warnings.warn(
            f"--runtime-cache {runtime_cache} is not used: {folder} is a bundle for {name}, and "
            f"only those for {compiling} compile kernels here",
            EngineWarning,
            stacklevel=2,
        )
    return engine_folder(target).open_engine(
        folder,
        manifest,
        provider=provider,
        threads=threads,
        strict=strict,
        runtime_cache=runtime_cache,
    )


def engine_folder(target: Target) -> EngineFolder:
    """What opens the bundles of a target; its library is not imported yet."""
    return cast(EngineFolder, load_part(target, "open", __package__))
