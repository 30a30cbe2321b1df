from __future__ import annotations

from pathlib import Path

from lopa.runtime.engines.onnxruntime.engine import OnnxRuntimeEngine
from lopa.runtime.engines.protocol import Engine
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
) -> Engine:
    return OnnxRuntimeEngine(folder, manifest, "cpu", threads)
