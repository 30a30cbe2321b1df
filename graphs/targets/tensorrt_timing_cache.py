"""Timing cache of TensorRT: measured kernels, so that the next build on this GPU is faster."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...runtime.contract import LopaError


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


def save_timing_cache(path: Path, cache: Any) -> None:
    """Write what was measured to `path`, as a whole or not at all."""
    write_whole(path, bytes(cache.serialize()))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under a temporary name beside it, then rename it."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(draft).chmod(0o644)
        Path(draft).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(draft).unlink()
        raise
