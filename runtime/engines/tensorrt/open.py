"""Opens bundles for the TensorRT libraries (see `engines.EngineFolder`)."""

from __future__ import annotations

from pathlib import Path

from ...manifest import BundleManifest
from ..protocol import Program

CUDA_GRAPHS = {
    "tensorrt": "one per instance, captured on its first step; lopa doctor tries them",
    "tensorrt-rtx": "captured by the library inside its own calls; lopa doctor tries them",
}


def open_engine(
    folder: Path,
    manifest: BundleManifest,
    *,
    provider: str,
    threads: int,
    strict: bool,
    runtime_cache: Path | None,
) -> Program:
    """Load the engine of a bundle onto the GPU."""
    from .program import TensorRtProgram

    return TensorRtProgram(folder, manifest, strict=strict, runtime_cache=runtime_cache)
