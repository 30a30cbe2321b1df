from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from lopa.runtime.manifest import read_bundle, record_files, write_manifest

from ...exported import Exports
from ..cli.conftest import Lopa, lopa

__all__ = ["Lopa", "lopa"]

PROMPTS = ([7, 30, 12, 45, 6], list(range(20, 40)), [5, 5, 9])
WINDOWS, CONTEXTS = (24, 48), (64, 96)

Bend = Callable[[str], Path]


@pytest.fixture(scope="session")
def half_bundle(exports: Exports, tiny_checkpoint: Path) -> Path:
    """`tiny_bundle` in float16."""
    model = exports.model("tiny-half", tiny_checkpoint, precision="fp16", candidates=16)
    return exports.bundle("tiny-half", model, 4, WINDOWS, CONTEXTS)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt_ids": ids}) + "\n" for ids in PROMPTS))
    return path


@pytest.fixture
def bent(tiny_bundle: Path, tmp_path: Path) -> Bend:
    """Makes a copy of `tiny_bundle` in which one weight is a little different."""

    def bend(name: str) -> Path:
        folder = tmp_path / f"bent-{name}"
        shutil.copytree(tiny_bundle, folder)
        path = folder / "step.onnx"
        model = onnx.load(path)
        (tensor,) = (item for item in model.graph.initializer if item.name == name)
        values = onnx.numpy_helper.to_array(tensor)
        noise = np.random.default_rng(0).standard_normal(values.shape).astype(values.dtype)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values * (1 + noise / 10), name))
        (folder / "weights.data").unlink()
        onnx.save(model, path, save_as_external_data=True, location="weights.data")
        manifest = read_bundle(folder)
        files = record_files(folder, list(manifest.files))
        write_manifest(folder, dataclasses.replace(manifest, files=files))
        return folder

    return bend
