"""`lopa export`: a Hugging Face folder becomes a model folder (graph, weights, model.json)."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

from ..runtime.contract import CONTRACT_VERSION, LopaError
from ..runtime.manifest import (
    SCHEMA_VERSION,
    GraphInfo,
    ModelManifest,
    record_files,
    write_manifest,
)
from ..runtime.staging import check_output, staged_folder
from .graph_file import GRAPH_FILE, write_graph
from .source import open_source
from .spec import parameter_shapes
from .tokenizer_files import copy_tokenizer
from .trace import OPSET, TORCH_DTYPES, trace

DEFAULT_CANDIDATES = 8
_LIBRARIES = ("torch", "onnx", "onnx-ir", "onnxscript", "safetensors")


def export_model(
    checkpoint: Path,
    out: Path,
    *,
    adapter: Path | None = None,
    precision: str = "fp32",
    candidates: int = DEFAULT_CANDIDATES,
    force: bool = False,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> ModelManifest:
    """Export `checkpoint` with an optional merged LoRA `adapter` to the folder `out`.

    `candidates` is K of the contract. Raises LopaError listing every fault of the sources.
    """
    if precision not in TORCH_DTYPES:
        known = ", ".join(sorted(TORCH_DTYPES))
        raise LopaError(f"precision is {precision!r}, expected one of: {known}")
    check_output(out, force, checkpoint, *([] if adapter is None else [adapter]))
    progress("reading", 0, 1)
    source = open_source(checkpoint, adapter, candidates)
    info = source.spec.info
    if not 1 <= candidates < info.tokenizer_size:
        raise LopaError(
            f"candidates is {candidates}, expected 1 to {info.tokenizer_size - 1}, "
            "one less than the tokenizer has tokens"
        )
    progress("tracing", 0, 1)
    model = trace(source.spec, precision)
    with staged_folder(out, force) as stage:
        names = write_graph(
            stage,
            model,
            parameter_shapes(source.spec),
            source.weights.read,
            lambda done, total: progress("writing", done, total),
        )
        names += copy_tokenizer(checkpoint, stage)
        manifest = ModelManifest(
            schema=SCHEMA_VERSION,
            contract=CONTRACT_VERSION,
            model=info,
            graph=GraphInfo(GRAPH_FILE, precision, OPSET),
            source=source.source,
            versions=library_versions(),
            files=record_files(stage, names),
        )
        write_manifest(stage, manifest)
    return manifest


def library_versions() -> dict[str, str]:
    """Versions of lopa and of the libraries that made the graph."""
    versions = {name: importlib.metadata.version(name) for name in _LIBRARIES}
    return {"lopa": importlib.metadata.version("lopa"), **versions}
