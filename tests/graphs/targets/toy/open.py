from __future__ import annotations

from pathlib import Path

from lopa.runtime.engines.onnxruntime.program import OnnxRuntimeProgram
from lopa.runtime.engines.protocol import Program
from lopa.runtime.manifest import BundleManifest

CUDA_GRAPHS = {"toy": "none, it is a toy"}


def open_engine(
    folder: Path,
    manifest: BundleManifest,
    *,
    provider: str,
    threads: int,
    strict: bool,
    runtime_cache: Path | None,
) -> Program:
    return OnnxRuntimeProgram(folder, manifest, "cpu", threads)
