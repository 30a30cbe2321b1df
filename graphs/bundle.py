"""`lopa build`: a model folder becomes a bundle, a folder with engine, tokenizer and manifest."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx

from ..runtime.contract import CONTRACT_VERSION, Instance, LopaError
from ..runtime.manifest import (
    SCHEMA_VERSION,
    TOKENIZER_FILES,
    BundleManifest,
    read_model,
    record_files,
    verify_files,
    write_manifest,
)
from ..runtime.staging import check_output, staged_folder
from .lint import check_graph
from .targets import build_engine


def build_bundle(
    model_folder: Path,
    out: Path,
    instances: tuple[Instance, ...],
    *,
    target: str = "onnxruntime",
    force: bool = False,
) -> BundleManifest:
    """Build `model_folder` for `target` into the folder `out`.

    The model's files are checked against `model.json` and the graph is linted first. Raises
    LopaError; `out` is then as it was before.
    """
    check_output(out, force, model_folder)
    model = read_model(model_folder)
    verify_files(model_folder, model.files)
    longest = max(instance.context for instance in instances)
    if longest > model.model.max_positions:
        raise LopaError(
            f"context {longest} is longer than the model's {model.model.max_positions} positions"
        )
    graph = onnx.load(model_folder / model.graph.file, load_external_data=False)
    check_graph(graph, str(model_folder / model.graph.file))
    with staged_folder(out, force) as stage:
        engine, names = build_engine(target, model_folder, model, instances, stage)
        for name in TOKENIZER_FILES:
            if name in model.files:
                shutil.copyfile(model_folder / name, stage / name)
                names.append(name)
        manifest = BundleManifest(
            schema=SCHEMA_VERSION,
            contract=CONTRACT_VERSION,
            model=model.model,
            graph=model.graph,
            engine=engine,
            instances=instances,
            source=model.source,
            versions=model.versions,
            files=record_files(stage, names),
        )
        write_manifest(stage, manifest)
    return manifest
