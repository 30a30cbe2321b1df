"""Bundles for the library double, made from ONNX Runtime bundles, and their machine."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from lopa.runtime.contract import Instance
from lopa.runtime.engine_info import EngineInfo, EngineStamp
from lopa.runtime.engines.tensorrt.stamp import this_platform
from lopa.runtime.manifest import (
    TOKENIZER_FILES,
    BundleManifest,
    read_bundle,
    record_files,
    write_manifest,
)

from ..cuda_double import CudaDouble
from .double import TensorRtDouble, write_plan

VERSION = "11.4.0.106"
ENGINE = "step.engine"
GRAPH = "ab" * 32  # hash of the graph


@dataclass(frozen=True)
class Doubles:
    """Both doubles, in the place of the real modules."""

    cuda: CudaDouble
    library: TensorRtDouble


def install(monkeypatch: pytest.MonkeyPatch, rtx: bool = False) -> Doubles:
    """Put fresh doubles where the engine imports the real modules."""
    cuda = CudaDouble()
    library = TensorRtDouble(cuda, VERSION, rtx)
    modules: dict[str, Any] = {"cuda.bindings.runtime": cuda}
    modules["tensorrt_rtx" if rtx else "tensorrt"] = library
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return Doubles(cuda, library)


def write_bundle(
    folder: Path,
    source: Path,
    instances: Sequence[Instance] | None = None,
    target: str = "tensorrt",
    **stamp: Any,
) -> BundleManifest:
    """Write the bundle of `source` for a TensorRT target; `stamp` changes fields of the stamp."""
    folder.mkdir(parents=True)
    manifest = read_bundle(source)
    instances = tuple(manifest.instances if instances is None else instances)
    names = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    for name in names:
        shutil.copyfile(source / name, folder / name)
    settings: dict[str, Any] = {
        "compute_capabilities": (89,),
        "platform": this_platform(),
        "hardware_compatibility": "none",
        "version_compatible": False,
        "profiles": tuple(instance.name for instance in instances),
        "graph_sha256": GRAPH,
        "settings": {},
    } | stamp
    lean = settings["version_compatible"]
    write_plan(folder / ENGINE, source, instances, VERSION, GRAPH, lean)
    manifest = replace(
        manifest,
        graph=replace(manifest.graph, file=ENGINE),
        engine=EngineInfo(target, False, {target: VERSION}, EngineStamp(**settings)),
        instances=instances,
        files=record_files(folder, [ENGINE, *names]),
    )
    write_manifest(folder, manifest)
    return manifest
