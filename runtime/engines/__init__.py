"""Engine libraries behind one protocol; each is imported only when a bundle needs it."""

from __future__ import annotations

import warnings
from pathlib import Path

from ..contract import LopaError
from ..manifest import BundleManifest
from .protocol import Program
from .status import EngineWarning
from .tensorrt.library import PRODUCTS

MAX_THREADS = 1024


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
    of TensorRT for RTX; for other bundles it is ignored with a warning.
    """
    if not 0 <= threads <= MAX_THREADS:
        raise LopaError(f"threads is {threads}, expected 0 to {MAX_THREADS}")
    target = manifest.engine.target
    if runtime_cache is not None and not (target in PRODUCTS and PRODUCTS[target].own_graphs):
        warnings.warn(
            f"--runtime-cache {runtime_cache} is not used: {folder} is a bundle for {target}, and "
            "only those for tensorrt-rtx compile kernels here",
            EngineWarning,
            stacklevel=2,
        )
    if target == "onnxruntime":
        from .onnxruntime.program import OnnxRuntimeProgram

        return OnnxRuntimeProgram(folder, manifest, provider, threads, strict=strict)
    if target in PRODUCTS:
        from .tensorrt.program import TensorRtProgram

        return TensorRtProgram(folder, manifest, strict=strict, runtime_cache=runtime_cache)
    known = ", ".join(("onnxruntime", *PRODUCTS))
    raise LopaError(f"bundle target {target!r} is not known to this lopa; known: {known}")
