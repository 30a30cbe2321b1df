from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from .exported import Exports

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def golden() -> Path:
    """The reference fixtures: LOPA_GOLDEN, else shared/golden beside the repository."""
    folder = Path(os.environ.get("LOPA_GOLDEN", REPOSITORY.parent / "shared" / "golden"))
    if not (folder / "checkpoints").is_dir():
        reason = f"no golden fixtures at {folder}; set LOPA_GOLDEN"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture(scope="session")
def rtx() -> Any:
    """TensorRT for RTX, which compiles without a GPU."""
    from lopa.runtime.engines.tensorrt.library import PRODUCTS, load_library

    names = PRODUCTS["tensorrt-rtx"].modules
    if not any(importlib.util.find_spec(name) for name in names):
        reason = "TensorRT for RTX is not installed (lopa[tensorrt-rtx])"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return load_library("tensorrt-rtx")


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    """Models exported once per test run."""
    return Exports.of_run(tmp_path_factory)


@pytest.fixture(scope="session")
def tiny_checkpoint(exports: Exports) -> Path:
    """A random two-layer checkpoint: 4 heads, 2 KV heads, blocks of 8, ids 294 to 319 undefined."""
    return exports.checkpoint("tiny", block_size=8)


@pytest.fixture(scope="session")
def tiny_model(exports: Exports, tiny_checkpoint: Path) -> Path:
    """`tiny_checkpoint` exported in float32 with 16 candidates."""
    return exports.model("tiny", tiny_checkpoint, candidates=16)


@pytest.fixture(scope="session")
def tiny_bundle(exports: Exports, tiny_model: Path) -> Path:
    """`tiny_model` built for 5 branches, windows of 24 and 48, contexts of 64 and 96."""
    return exports.bundle("tiny", tiny_model, 4, (24, 48), (64, 96))
