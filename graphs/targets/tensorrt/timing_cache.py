"""Timing cache of TensorRT: measured kernels, so that the next build on this GPU is faster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ....runtime.contract import LopaError


def load_timing_cache(
    path: Path, config: Any, log: Any, strict: bool, warn: Callable[[str], None]
) -> Any:
    """Give the builder the cache at `path`, or an empty one where there is no file.

    Returns the cache, which must live until the engine is built. One that the library does not take
    (damaged, of another version or GPU) is a warning and an empty one takes its place; raises
    LopaError for it when `strict`.
    """
    stored = path.read_bytes() if path.is_file() else b""
    said = log.count()
    cache = config.create_timing_cache(stored)
    taken = cache is not None and config.set_timing_cache(cache, ignore_mismatch=False)
    if taken and (not stored or log.count() == said):  # of damaged bytes some make an empty cache
        return cache
    fault = f"timing cache {path} is not of this library and GPU"
    if strict:
        raise LopaError(
            f"{fault}; remove it and build once without --errorOnTimingCacheMiss to make a new one"
        )
    log.clear()
    warn(f"{fault}: kernels are timed again and it is replaced")
    cache = config.create_timing_cache(b"")
    config.set_timing_cache(cache, ignore_mismatch=False)
    return cache
