"""The second, quantised graph of a bundle, for steps that explore (`runtime/precision.py`)."""

from __future__ import annotations

from pathlib import Path

import onnx

from ....runtime.contract import Instance, LopaError
from ....runtime.engines.onnxruntime.buffers import COMMIT_FILE
from ....runtime.manifest import ModelManifest, model_hash, read_model, verify_files
from ....runtime.quantization import FastGraph
from ...lint import check_graph
from .build import build_engine

FAST_TARGETS = ("onnxruntime",)
FOLDER = "fast"


def check_fast_target(target: str) -> None:
    """Raise LopaError unless bundles for `target` can hold a fast graph."""
    if target not in FAST_TARGETS:
        raise LopaError(
            f"a bundle for {target} holds one precision, a fast model is for "
            f"{', '.join(FAST_TARGETS)}; build a bundle of each"
        )


def read_fast(folder: Path, model: ModelManifest, fast: Path, target: str) -> ModelManifest:
    """Read `fast`; raises LopaError unless it can be the fast graph of the model in `folder`."""
    check_fast_target(target)
    found = read_model(fast)
    verify_files(fast, found.files)
    if found.quantization is None:
        raise LopaError(f"{fast} is not quantised; make it with: lopa calibrate {folder} -o {fast}")
    if found.quantization.model_sha256 != model_hash(model):
        raise LopaError(
            f"{fast} was made from model {found.quantization.model_sha256[:12]}, {folder} is "
            f"{model_hash(model)[:12]}; calibrate {folder} itself"
        )
    if found.model_dtype != model.model_dtype:
        raise LopaError(
            f"the cache of {fast} is {found.model_dtype}, that of {folder} {model.model_dtype}, "
            "and a bundle has one cache; calibrate with a recipe that leaves the cache as it is"
        )
    return found


def add_fast(
    fast: Path, model: ModelManifest, instances: tuple[Instance, ...], stage: Path
) -> tuple[FastGraph, list[str]]:
    """Build the graph of the model in `fast`, which `read_fast` gave, into a folder in `stage`.

    Returns its record and files.
    """
    assert model.quantization is not None
    check_graph(
        onnx.load(fast / model.graph.file, load_external_data=False), str(fast / model.graph.file)
    )
    inner = stage / FOLDER
    inner.mkdir()
    _, names = build_engine(fast, model, instances, inner)
    (inner / COMMIT_FILE).unlink()  # commits do not depend on the precision
    kept = [f"{FOLDER}/{name}" for name in names if name != COMMIT_FILE]
    return FastGraph(kept[0], model.quantization), kept
