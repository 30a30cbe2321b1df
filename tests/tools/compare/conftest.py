from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from lopa.runtime.manifest import TOKENIZER_FILES, read_bundle, record_files, write_manifest
from lopa.runtime.quantization import FastGraph, Quantization

from ...exported import Exports
from ..cli.conftest import Lopa, lopa

__all__ = ["Lopa", "lopa"]

PROMPTS = ([7, 30, 12, 45, 6], list(range(20, 40)), [5, 5, 9])
WINDOWS, CONTEXTS = (24, 48), (64, 96)
DECODE = ("--max-new-tokens", 16, "--confidence", 0.3, "--threads", 1)

Bend = Callable[[str], Path]


@pytest.fixture(scope="session")
def half_bundle(exports: Exports, tiny_checkpoint: Path) -> Path:
    """`tiny_bundle` in float16."""
    model = exports.model("tiny-half", tiny_checkpoint, precision="fp16", candidates=16)
    return exports.bundle("tiny-half", model, 4, WINDOWS, CONTEXTS)


@pytest.fixture(scope="session")
def two_precisions(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_bundle` with a fast graph that has the same weights, shaken."""
    folder = tmp_path_factory.mktemp("two-precisions") / "bundle"
    shutil.copytree(tiny_bundle, folder)
    manifest = read_bundle(folder)
    graph = f"fast/{manifest.graph.file}"
    (folder / "fast").mkdir()
    shutil.copy(folder / manifest.graph.file, folder / graph)
    weights = np.fromfile(folder / "weights.data", np.float32)
    noise = np.random.default_rng(0).normal(1, 0.05, weights.shape).astype(np.float32)
    (weights * noise).tofile(folder / "fast/weights.data")
    record = Quantization("int8", (), {}, 1.0, 1, "0" * 64, "0" * 64)
    files = record_files(folder, [*manifest.files, graph, "fast/weights.data"])
    both = dataclasses.replace(manifest, files=files, fast=FastGraph(graph, record))
    write_manifest(folder, both)
    return folder


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


def wordless(bundle: Path, folder: Path) -> Path:
    """A copy of a bundle without its tokenizer."""
    shutil.copytree(bundle, folder)
    manifest = read_bundle(folder)
    files = dict(manifest.files)
    for name in TOKENIZER_FILES:
        if files.pop(name, None) is not None:
            (folder / name).unlink()
    write_manifest(folder, dataclasses.replace(manifest, files=files))
    return folder
