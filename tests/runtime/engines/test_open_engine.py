"""What `open_engine` says of settings that a bundle's library has no use for."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
from lopa.runtime.engines.status import EngineWarning
from lopa.runtime.session import open_bundle

from .tensorrt.bundle import install, write_bundle


@pytest.mark.parametrize("target", ["onnxruntime", "tensorrt"])
def test_a_runtime_cache_that_is_not_used_is_told(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    folder, file = tiny_bundle, tmp_path / "kernels"
    if target == "tensorrt":
        install(monkeypatch)
        folder = tmp_path / "bundle"
        write_bundle(folder, tiny_bundle)
    said = re.escape(f"--runtime-cache {file} is not used: {folder} is a bundle for {target}, and ")
    with pytest.warns(EngineWarning, match=said) as caught:
        assert open_bundle(folder, threads=1, runtime_cache=file)
    assert len(caught) == 1
    assert not file.exists()


def test_a_runtime_cache_that_is_used_is_not_spoken_of(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, rtx=True)
    write_bundle(tmp_path / "bundle", tiny_bundle, target="tensorrt-rtx")
    with warnings.catch_warnings():
        warnings.simplefilter("error", EngineWarning)
        assert open_bundle(tmp_path / "bundle", runtime_cache=tmp_path / "kernels")
