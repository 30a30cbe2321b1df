"""Build targets, one file each; a target is imported only when it is asked for."""

from __future__ import annotations

from pathlib import Path

from ...runtime.contract import Instance, LopaError
from ...runtime.engine_info import EngineInfo
from ...runtime.manifest import ModelManifest
from .listener import BuildListener
from .tensorrt.settings import TensorRtSettings
from .tensorrt.traits import TRAITS

TENSORRT = tuple(TRAITS)
TARGETS = ("onnxruntime", *TENSORRT)


def check_target(target: str, precision: str, settings: TensorRtSettings | None) -> None:
    """Raise LopaError if `target` cannot be built here, whatever the model: asked before an export.

    `settings` are for the TensorRT targets alone.
    """
    if target in TENSORRT:
        from .tensorrt import build as tensorrt

        tensorrt.check_build(target, precision, settings or TensorRtSettings())
    elif target == "onnxruntime":
        from .onnxruntime import build as onnxruntime

        onnxruntime.check_precision(precision)
    else:
        raise LopaError(f"target is {target!r}, expected one of: {', '.join(TARGETS)}")


def build_engine(
    target: str,
    model_folder: Path,
    manifest: ModelManifest,
    instances: tuple[Instance, ...],
    stage: Path,
    settings: TensorRtSettings | None,
    listener: BuildListener,
) -> tuple[EngineInfo, list[str]]:
    """Build the engine of `target` into `stage`; returns its record and files, engine first."""
    if target in TENSORRT:
        from .tensorrt import build as tensorrt

        return tensorrt.build_engine(
            target,
            model_folder,
            manifest,
            instances,
            stage,
            settings or TensorRtSettings(),
            listener,
        )
    check_target(target, manifest.graph.precision, settings)
    from .onnxruntime import build as onnxruntime

    return onnxruntime.build_engine(model_folder, manifest, instances, stage)
