"""Build targets, one file each; a target is imported only when it is asked for."""

from __future__ import annotations

from pathlib import Path

from ...runtime.contract import Instance, LopaError
from ...runtime.manifest import EngineInfo, ModelManifest

TARGETS = ("onnxruntime",)


def build_engine(
    target: str,
    model_folder: Path,
    manifest: ModelManifest,
    instances: tuple[Instance, ...],
    stage: Path,
) -> tuple[EngineInfo, list[str]]:
    """Build the engine of `target` into `stage`; returns its record and the file names."""
    if target == "onnxruntime":
        from . import onnxruntime

        return onnxruntime.build_engine(model_folder, manifest, instances, stage)
    raise LopaError(f"target is {target!r}, expected one of {list(TARGETS)}")
