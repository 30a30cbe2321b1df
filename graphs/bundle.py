"""`lopa build`: a model folder becomes a bundle, a folder with engine, tokenizer and manifest."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from .targets.fast import add_fast, read_fast
from .targets.listener import BuildListener

SILENT = BuildListener()


def build_bundle(
    model_folder: Path,
    out: Path,
    instances: tuple[Instance, ...],
    *,
    target: str = "onnxruntime",
    fast: Path | None = None,
    settings: Any = None,
    listener: BuildListener = SILENT,
    force: bool = False,
) -> BundleManifest:
    """Build `model_folder` for `target` into the folder `out`.

    `fast` is a quantised folder of the same model, which the bundle then holds as well. `settings`
    are of the class that the target offers (`targets/protocol.py`). Files are checked against
    `model.json` and graphs are linted first. Raises LopaError; `out` is then as it was before.
    """
    check_output(out, force, model_folder, *([] if fast is None else [fast]))
    model = read_model(model_folder)
    verify_files(model_folder, model.files)
    fast_model = None if fast is None else read_fast(model_folder, model, fast, target)
    longest = max(instance.context for instance in instances)
    if longest > model.model.max_positions:
        raise LopaError(
            f"context {longest} is longer than the model's {model.model.max_positions} positions"
        )
    graph = onnx.load(model_folder / model.graph.file, load_external_data=False)
    check_graph(graph, str(model_folder / model.graph.file))
    with staged_folder(out, force) as stage:
        engine, names = build_engine(
            target, model_folder, model, instances, stage, settings, listener
        )
        fast_graph = None
        if fast is not None and fast_model is not None:
            fast_graph, added = add_fast(target, fast, fast_model, instances, stage)
            names += added
        for name in TOKENIZER_FILES:
            if name in model.files:
                shutil.copyfile(model_folder / name, stage / name)
                names.append(name)
        manifest = BundleManifest(
            schema=SCHEMA_VERSION,
            contract=CONTRACT_VERSION,
            model=model.model,
            graph=replace(model.graph, file=names[0]),
            engine=engine,
            instances=instances,
            source=model.source,
            versions=model.versions,
            files=record_files(stage, names),
            quantization=model.quantization,
            fast=fast_graph,
        )
        write_manifest(stage, manifest)
    return manifest
