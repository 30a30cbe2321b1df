"""Opens bundles for ONNX Runtime (see `engines.EngineFolder`)."""

from __future__ import annotations

from pathlib import Path

from ...manifest import BundleManifest
from ..protocol import Program

CUDA_GRAPHS = {"onnxruntime": "with --provider cuda, one per instance; lopa doctor tries them"}


def open_engine(
    folder: Path,
    manifest: BundleManifest,
    *,
    provider: str,
    threads: int,
    strict: bool,
    runtime_cache: Path | None,
) -> Program:
    """Load the session of a bundle."""
    from .program import OnnxRuntimeProgram

    return OnnxRuntimeProgram(folder, manifest, provider, threads, strict=strict)
