"""Engine libraries behind one protocol; each is imported only when a bundle needs it."""

from __future__ import annotations

from pathlib import Path

from ..contract import LopaError
from ..manifest import BundleManifest
from .protocol import Engine

MAX_THREADS = 1024


def open_engine(folder: Path, manifest: BundleManifest, provider: str, threads: int) -> Engine:
    """Load the engine of a bundle; raises LopaError naming the extra when its library is absent."""
    if not 0 <= threads <= MAX_THREADS:
        raise LopaError(f"threads is {threads}, expected 0 to {MAX_THREADS}")
    if manifest.engine.target == "onnxruntime":
        from .onnxruntime import OnnxRuntimeEngine

        return OnnxRuntimeEngine(folder, manifest, provider, threads)
    raise LopaError(
        f"bundle target {manifest.engine.target!r} is not known to this lopa; known: onnxruntime"
    )
