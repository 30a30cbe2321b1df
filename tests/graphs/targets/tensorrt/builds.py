"""Builds for the double of TensorRT: instances, GPU and settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lopa.graphs.bundle import build_bundle
from lopa.graphs.instances import plan_instances
from lopa.graphs.targets.listener import BuildListener
from lopa.graphs.targets.tensorrt.settings import TensorRtSettings
from lopa.runtime.engines.cuda import Gpu
from lopa.runtime.manifest import BundleManifest

INSTANCES = plan_instances(4, [8, 16], [32], [64])
GPU = Gpu(0, "NVIDIA L4", 89, 24 << 30)


def build(model: Path, out: Path, **settings: Any) -> BundleManifest:
    """Build a model folder for TensorRT."""
    return build_bundle(
        model, out, INSTANCES, target="tensorrt", settings=TensorRtSettings(**settings)
    )


def warnings_of(model: Path, out: Path, target: str = "tensorrt", **settings: Any) -> list[str]:
    """Build a model folder; returns what the listener is warned of."""
    warnings: list[str] = []
    build_bundle(
        model,
        out,
        INSTANCES,
        target=target,
        settings=TensorRtSettings(**settings),
        listener=BuildListener(warn=warnings.append),
    )
    return warnings
