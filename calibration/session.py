"""Sessions of graphs that exist in memory, their large tensors in a model folder."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from pathlib import Path
from typing import Any

import onnx

from ..runtime.engines.onnxruntime.library import load_library


def open_session(model: onnx.ModelProto, folder: Path) -> Any:
    """Load `model` on the CPU; its external tensors are read from `folder`."""
    _give_back_memory()
    library = load_library()
    options = library.SessionOptions()
    options.log_severity_level = 3
    options.enable_mem_pattern = False  # every state has its own shape
    options.enable_cpu_mem_arena = False  # the largest state is no measure for the next
    options.add_session_config_entry(
        "session.model_external_initializers_file_folder_path", str(folder)
    )
    return library.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def _give_back_memory() -> None:
    """Hand what earlier sessions freed back to the system: glibc would keep most of it."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
