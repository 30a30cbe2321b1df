from __future__ import annotations

from types import SimpleNamespace

import pytest
from lopa.graphs.targets.tensorrt import build as tensorrt

from .builds import GPU
from .recording_library import Library, RtxLibrary


@pytest.fixture(params=["10.13.3.9", "11.4.0.106"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Library:
    """TensorRT of either major version, on a machine with a GPU."""
    made = Library(request.param)
    monkeypatch.setattr(tensorrt, "load_library", lambda target: made)
    monkeypatch.setattr(tensorrt, "Cuda", lambda: SimpleNamespace(gpus=lambda: (GPU,)))
    return made


@pytest.fixture
def rtx_double(monkeypatch: pytest.MonkeyPatch) -> RtxLibrary:
    """TensorRT for RTX."""
    made = RtxLibrary("1.7.1.116")
    monkeypatch.setattr(tensorrt, "load_library", lambda target: made)
    return made
