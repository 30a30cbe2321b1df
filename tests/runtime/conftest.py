from __future__ import annotations

from pathlib import Path

import lopa
import pytest
from lopa.runtime.engines.onnxruntime.state import OnnxRuntimeState
from lopa.runtime.session import Session

from .dense_model import DenseModel
from .engine_steps import open_engine


@pytest.fixture(scope="session")
def engine(tiny_bundle: Path) -> OnnxRuntimeState:
    """The tiny bundle's engine; tests that use its cache reset and fill it themselves."""
    return open_engine(tiny_bundle)


@pytest.fixture(scope="session")
def dense(tiny_checkpoint: Path) -> DenseModel:
    """The tiny checkpoint in float64."""
    return DenseModel(tiny_checkpoint)


@pytest.fixture(scope="session")
def session(tiny_bundle: Path) -> Session:
    """The tiny bundle, opened on one thread."""
    return lopa.open_bundle(tiny_bundle, threads=1)
