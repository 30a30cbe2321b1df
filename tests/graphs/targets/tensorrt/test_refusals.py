"""What cannot be built is said before the library, or an export, has any work."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lopa.graphs.bundle import build_bundle
from lopa.graphs.targets import check_target
from lopa.graphs.targets.tensorrt import build as tensorrt
from lopa.graphs.targets.tensorrt.settings import TensorRtSettings
from lopa.runtime.contract import LopaError
from lopa.runtime.engines.cuda import Gpu
from lopa.runtime.manifest import read_model, write_manifest
from lopa.runtime.quantization import Quantization

from .builds import INSTANCES, warnings_of
from .recording_library import Library, RtxLibrary


def test_a_graph_that_cannot_be_built_is_refused_before_the_library_sees_it(
    rtx_double: RtxLibrary, tiny_checkpoint: Path, exports: Any, tmp_path: Path
) -> None:
    model = exports.model("tiny-bfloat", tiny_checkpoint, precision="bf16", candidates=16)
    settings = TensorRtSettings(compute_capabilities=(75, 86))
    with pytest.raises(
        LopaError,
        match=r"TensorRT for RTX cannot build .*: the graph holds bf16, which SM 75 lacks "
        r"\(SM 80 and later have it\)",
    ):
        build_bundle(
            model, tmp_path / "bundle", INSTANCES, target="tensorrt-rtx", settings=settings
        )
    assert rtx_double.parsed is None


def test_precisions_that_a_gpu_lacks_are_refused_before_an_export(
    rtx_double: RtxLibrary, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    turing = Gpu(0, "NVIDIA T4", 75, 16 << 30)
    monkeypatch.setattr(tensorrt, "Cuda", lambda: SimpleNamespace(gpus=lambda: (turing,)))
    for target, settings in (
        ("tensorrt-rtx", TensorRtSettings(compute_capabilities=(75, 89))),
        ("tensorrt", None),
    ):
        with pytest.raises(LopaError, match="cannot build this: the graph holds bf16, which SM 75"):
            check_target(target, "bf16", settings)
        check_target(target, "fp16", settings)


@pytest.mark.parametrize(("capabilities", "warned"), [((75, 89), True), ((89,), False)])
def test_integers_for_turing_are_a_warning(
    rtx_double: RtxLibrary,
    tiny_model: Path,
    tmp_path: Path,
    capabilities: tuple[int, ...],
    warned: bool,
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    quantization = Quantization("int8", (), {}, 1.0, 1, "ab" * 32, "cd" * 32)
    write_manifest(model, replace(read_model(model), quantization=quantization))
    warnings = warnings_of(
        model, tmp_path / "bundle", "tensorrt-rtx", compute_capabilities=capabilities
    )
    assert any("integers compile, but may not run there" in line for line in warnings) == warned


def test_no_gpu(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def gpus() -> tuple[Gpu, ...]:
        raise LopaError("no driver")

    for found, reason in ((gpus, r"is usable here \(no driver\)"), (tuple, "is here")):
        monkeypatch.setattr(tensorrt, "Cuda", lambda found=found: SimpleNamespace(gpus=found))
        with pytest.raises(
            LopaError,
            match=f"no NVIDIA GPU {reason}: TensorRT builds on the GPU that will run the engine, "
            "--target tensorrt-rtx on any machine",
        ):
            check_target("tensorrt", "fp16", None)


@pytest.mark.parametrize(
    ("target", "settings", "said"),
    [
        ("tensorrt", {"compute_capabilities": (86,)}, r"--sm \(the engine is built for the GPU"),
        ("tensorrt", {"strict_timing_cache": True}, "--errorOnTimingCacheMiss without --timing"),
        ("tensorrt-rtx", {"compute_capabilities": (86, 90)}, r"--sm 90 \(it builds for 75, 80"),
        ("tensorrt-rtx", {"version_compatible": True}, r"--versionCompatible \(its engines need"),
        ("tensorrt-rtx", {"hardware_compatibility": "ampere+"}, r"--hardwareCompatibilityLevel \("),
        ("tensorrt-rtx", {"strict_timing_cache": True}, r"--errorOnTimingCacheMiss \(it has no"),
        ("tensorrt-rtx", {"timing_cache": Path("x")}, r"--timingCacheFile \(no kernel is timed"),
    ],
)
def test_settings_that_a_target_has_no_use_for(
    target: str, settings: dict[str, Any], said: str
) -> None:
    """Said without the library: nothing has to be installed for it."""
    with pytest.raises(LopaError, match=f"TensorRT.* does not take {said}.*; leave it out"):
        check_target(target, "fp16", TensorRtSettings(**settings))


@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx"])
def test_a_missing_library_names_the_extra(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(LopaError, match=rf"is not installed; .*pip install 'lopa\[{target}\]'"):
        check_target(target, "fp16", None)


def test_onnxruntime_has_no_bfloat16() -> None:
    with pytest.raises(LopaError, match="onnxruntime runs fp32 and fp16 graphs, not bf16; choose"):
        check_target("onnxruntime", "bf16", None)
