from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from lopa.graphs.targets.tensorrt.settings import TensorRtSettings
from lopa.tools.target_flags import add_target_flags, target_settings

from .conftest import Lopa

TRTEXEC = [
    "--memPoolSize=workspace:2G",
    "--builderOptimizationLevel=5",
    "--profilingVerbosity=layer_names_only",
    "--exportLayerInfo=layers.json",
    "--hardwareCompatibilityLevel=sameComputeCapability",
    "--versionCompatible",
    "--timingCacheFile=timing.cache",
    "--errorOnTimingCacheMiss",
]
KEBAB = [
    "--mem-pool-size=workspace:2048",
    "--builder-optimization-level=5",
    "--profiling-verbosity=layer-names-only",
    "--export-layer-info=layers.json",
    "--hardware-compatibility-level=same-compute-capability",
    "--version-compatible",
    "--timing-cache-file=timing.cache",
    "--error-on-timing-cache-miss",
]


def parse(target: str, *flags: str) -> TensorRtSettings | None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target")
    add_target_flags(parser)
    found: TensorRtSettings | None = target_settings(
        parser.parse_args([f"--target={target}", *flags])
    )
    return found


@pytest.mark.parametrize("flags", [TRTEXEC, KEBAB])
def test_both_spellings(flags: list[str]) -> None:
    assert parse("tensorrt", *flags) == TensorRtSettings(
        workspace=2 << 30,
        optimization_level=5,
        profiling_verbosity="layer-names-only",
        layer_info=Path("layers.json"),
        hardware_compatibility="same-compute-capability",
        version_compatible=True,
        timing_cache=Path("timing.cache"),
        strict_timing_cache=True,
    )


def test_without_flags_the_library_decides() -> None:
    assert parse("tensorrt-rtx") == TensorRtSettings()
    assert parse("onnxruntime") is None
    assert parse("tensorrt-rtx", "--sm=89,86") == TensorRtSettings(compute_capabilities=(86, 89))


@pytest.mark.parametrize(
    ("text", "size"),
    [("7", 7 << 20), ("7M", 7 << 20), ("7MiB", 7 << 20), ("7G", 7 << 30), ("7K", 7168), ("7B", 7)],
)
def test_sizes_of_the_workspace(text: str, size: int) -> None:
    assert parse("tensorrt", f"--memPoolSize=workspace:{text}") == TensorRtSettings(workspace=size)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--memPoolSize=7", "expected workspace:N in MiB (or with B, K, M, G), got 7"),
        ("--memPoolSize=workspace:0", "workspace:0 is 0 bytes, expected 1 to 2^63 - 1"),
        ("--memPoolSize=workspace:9999999999G", "bytes, expected 1 to 2^63 - 1"),
        ("--memPoolSize=dlaSRAM:7", "expected workspace:N in MiB"),
        ("--builderOptimizationLevel=6", "invalid choice: 6"),
        ("--profilingVerbosity=all", "expected one of layer-names-only, detailed, none, got all"),
        ("--sm=8.6", "expected a whole number, got '8.6'"),
    ],
)
def test_values_that_are_none(lopa: Lopa, tmp_path: Path, flag: str, said: str) -> None:
    shown = lopa("build", "x", "-o", tmp_path / "x", "--target", "tensorrt", flag)
    assert shown.status == 2
    assert said in shown.err
    assert shown.err.count("\n") == 1


def test_flags_that_a_target_has_no_use_for(lopa: Lopa, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "x"
    shown = lopa(
        "build", tiny_model, "-o", out, "--versionCompatible", "--mem-pool-size=workspace:4"
    )
    assert (shown.status, shown.err) == (
        1,
        "lopa: error: --target onnxruntime has no use for --memPoolSize, --versionCompatible; "
        "leave it out or choose one of tensorrt, tensorrt-rtx\n",
    )
    fast = ["--fast-model", tiny_model, "--target=tensorrt-rtx", "--dry-run"]
    shown = lopa("build", tiny_model, "-o", out, *fast)
    assert (shown.status, shown.err) == (
        1,
        "lopa: error: a bundle for tensorrt-rtx holds one precision, a fast model is for "
        "onnxruntime; build a bundle of each\n",
    )
    shown = lopa("build", tiny_model, "-o", out, "--target=tensorrt-rtx", "--sm=90", "--dry-run")
    assert (shown.status, shown.err) == (
        1,
        "lopa: error: TensorRT for RTX does not take --sm 90 (it builds for 75, 80, 86, 89, 120, "
        "121); leave it out\n",
    )
    assert not out.exists()


@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx"])
def test_a_missing_library_is_said_before_the_export(
    lopa: Lopa,
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
) -> None:
    for name in ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    shown = lopa("build", tiny_checkpoint, "-o", tmp_path / "x", "--target", target, "--fp16")
    assert shown.status == 1
    assert shown.err.endswith(f"install it with: pip install 'lopa[{target}]'\n")
    assert shown.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_bfloat16_on_onnxruntime(lopa: Lopa, tiny_checkpoint: Path, tmp_path: Path) -> None:
    shown = lopa("build", tiny_checkpoint, "-o", tmp_path / "x", "--bf16")
    assert (shown.status, shown.err) == (
        1,
        "lopa: error: onnxruntime runs fp32 and fp16 graphs, not bf16; choose one of them or a "
        "TensorRT target\n",
    )


def test_int8_needs_a_quantised_model_folder(
    lopa: Lopa, tiny_checkpoint: Path, tiny_model: Path, tmp_path: Path
) -> None:
    for source, found in ((tiny_checkpoint, "is not a model folder"), (tiny_model, "is not quant")):
        shown = lopa("build", source, "-o", tmp_path / "x", "--int8")
        assert shown.status == 1
        assert shown.err.startswith(
            f"lopa: error: --int8 needs a quantised model folder, {source} {found}"
        )
        assert shown.err.endswith("lopa calibrate MODEL --prompts FILE -o MODEL_INT8\n")


def test_a_build_for_rtx(rtx: Any, lopa: Lopa, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    command = ["build", tiny_model, "-o", out, "--target=tensorrt-rtx", "--sm=86", "--context=64"]
    shown = lopa(*command, "--window=8", "--prefill=32")
    assert (shown.status, shown.err) == (0, "")
    for text in (f"built {out} for tensorrt-rtx", "b5-w8-c64-r40", "step.engine", "SM 86; linux-"):
        assert text in shown.out
    assert "warnings" not in shown.out
    inspected = lopa("inspect", out)
    assert inspected.status == 0
    for text in ("bundle for tensorrt-rtx", "the engine takes exactly", "SM 86; linux-"):
        assert text in inspected.out
    plan = json.loads(lopa(*command, "--force", "--dry-run", "--json").out)
    assert {item["window"] for item in plan["instances"]} == {16, 32, 64}
