from __future__ import annotations

from pathlib import Path

from lopa.graphs.targets.listener import BuildListener
from lopa.graphs.targets.onnxruntime import build as onnxruntime
from lopa.runtime.contract import Instance, LopaError
from lopa.runtime.engine_info import EngineInfo
from lopa.runtime.manifest import ModelManifest

from .settings import ToySettings


def check_build(target: str, precision: str, settings: ToySettings) -> None:
    if settings.colour == "deep-blue":
        raise LopaError("the toy is out of blue")


def build_engine(
    target: str,
    model_folder: Path,
    manifest: ModelManifest,
    instances: tuple[Instance, ...],
    stage: Path,
    settings: ToySettings,
    listener: BuildListener,
) -> tuple[EngineInfo, list[str]]:
    names = onnxruntime.write_step(model_folder, manifest, stage)
    listener.warn(f"painted {settings.colour}")
    return EngineInfo(target, dynamic=True, versions={"toy": "1.0"}), names
