"""Polygraphy's own runners over the saved engine file of a bundle, without lopa's runtime."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

from polygraphy.backend.base import BaseRunner
from polygraphy.backend.common import BytesFromPath
from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from polygraphy.backend.trt import EngineFromBytes, TrtRunner

from ...runtime.contract import ContractError, LopaError
from ...runtime.manifest import BundleManifest
from .feeds import Feed, shape_of


class ProfileRunner(TrtRunner):  # type: ignore[misc]
    """TrtRunner that switches to the optimisation profile of each step's instance."""

    def __init__(self, engine: Any, profiles: tuple[str, ...], name: str) -> None:
        super().__init__(engine, name=name)
        self._profiles = profiles

    def infer_impl(self, feed_dict: Feed, *args: Any, **kwargs: Any) -> OrderedDict[str, Any]:
        """Choose the profile, then run; raises ContractError when no profile has the shape."""
        wanted = shape_of(feed_dict).name
        if wanted not in self._profiles:
            known = ", ".join(self._profiles)
            raise ContractError(f"no profile is {wanted}; the engine has {known}")
        self.set_profile(self._profiles.index(wanted))
        outputs: OrderedDict[str, Any] = super().infer_impl(feed_dict, *args, **kwargs)
        return outputs


def saved_runner(folder: Path, manifest: BundleManifest, provider: str, name: str) -> BaseRunner:
    """Return OnnxrtRunner or TrtRunner over the engine file of a bundle."""
    path, target = str(folder / manifest.graph.file), manifest.engine.target
    if target == "onnxruntime":
        return OnnxrtRunner(SessionFromOnnx(path, providers=[provider]), name=name)
    if target == "tensorrt" and manifest.engine.stamp is not None:
        engine = EngineFromBytes(BytesFromPath(path))
        return ProfileRunner(engine, manifest.engine.stamp.profiles, name)
    raise LopaError(f"polygraphy has no runner for target {target}; use --runner lopa")
