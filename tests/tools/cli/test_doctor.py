from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lopa.tools import machine
from lopa.tools.display.report import size_text

from ...runtime.engines.tensorrt.bundle import Doubles, install, write_bundle
from .conftest import Lopa


@pytest.fixture
def doubles(monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path) -> Doubles:
    return install(monkeypatch)


def no_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings", "cuda.bindings.runtime"):
        monkeypatch.setitem(sys.modules, name, None)


def targets(found: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {target["name"]: (target["build"], target["run"]) for target in found["targets"]}


def test_a_machine_without_a_gpu(lopa: Lopa, monkeypatch: pytest.MonkeyPatch) -> None:
    no_tensorrt(monkeypatch)
    shown = lopa("doctor", "--json")
    assert shown.status == 0
    found = json.loads(shown.out)
    versions = {library["name"]: library["version"] for library in found["libraries"]}
    assert versions["onnxruntime"].startswith("1.")
    assert versions["tensorrt"] is None
    assert found["gpus"] == []
    assert found["cuda"].startswith("cuda-python is not installed")
    can = targets(found)
    assert can["onnxruntime, cpu"] == (None, None)
    assert "pip install 'lopa[tensorrt]'" in can["tensorrt"][1]
    assert "pip install 'lopa[tensorrt-rtx]'" in can["tensorrt-rtx"][0]
    text = lopa("doctor").out
    assert "GPUs" in text
    assert "none" in text


def test_a_missing_bundle_is_said_before_the_machine_is_looked_at(
    lopa: Lopa, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def look() -> None:
        raise AssertionError("looked at the machine")

    monkeypatch.setattr(machine, "this_machine", look)
    shown = lopa("doctor", tmp_path / "absent")
    assert shown.status == 1
    assert shown.err.startswith(f"lopa: error: no bundle at {tmp_path / 'absent'}; make one with")


def test_a_file_is_no_bundle(lopa: Lopa, tiny_bundle: Path) -> None:
    file = tiny_bundle / "manifest.json"
    shown = lopa("doctor", file)
    assert (shown.status, shown.err) == (
        1,
        f"lopa: error: {file} is a file, expected a bundle: the folder that lopa build makes\n",
    )


def test_versions_of_python_packages_need_no_import() -> None:
    script = (
        "import sys; from lopa.tools.machine import this_machine;"
        "print({item.name: item.version for item in this_machine().libraries}['torch']);"
        "print('torch' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    version, imported = found.stdout.split()
    assert version == importlib.metadata.version("torch")
    assert imported == "False"


def test_a_machine_with_a_gpu(lopa: Lopa, doubles: Doubles) -> None:
    found = json.loads(lopa("doctor", "--json").out)
    assert found["cuda"] == "runtime 13.5, driver serves 13.1"
    assert found["gpus"] == [
        {"index": 0, "name": "Double GPU", "compute_capability": 89, "memory": 8 << 30}
    ]
    assert targets(found)["tensorrt"] == (None, None)
    assert "Double GPU, SM 8.9, 8.59 GB" in lopa("doctor").out


def test_tensorrt_rtx_has_no_kernels_for_hopper(
    lopa: Lopa, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubles = install(monkeypatch, rtx=True)
    doubles.cuda.compute_capability = 90
    build, run = targets(json.loads(lopa("doctor", "--json").out))["tensorrt-rtx"]
    assert build is None
    assert run == "TensorRT for RTX has no kernels for this GPU; use --target tensorrt"


def test_a_bundle_of_the_cpu(lopa: Lopa, tiny_bundle: Path) -> None:
    shown = lopa("doctor", tiny_bundle)
    assert shown.status == 0
    assert "yes, onnxruntime 1." in shown.out
    assert "none on a CPU" in shown.out
    found = json.loads(lopa("doctor", tiny_bundle, "--json").out)["bundle"]
    weights = (tiny_bundle / "weights.data").stat().st_size
    graphs = sum(path.stat().st_size for path in tiny_bundle.glob("*.onnx"))
    assert found["memory"] == {"weights": weights + graphs}
    # 256 bytes a slot, keys and values: 96 slots, 5 x 48 window rows.
    assert found["decode_memory"] == {
        "cache": 512 * 96,
        "windows": 512 * 240,
        "inputs and head outputs": 240 * 240 + 96 + 3 * 4 * 240 + 4 + 240 * (16 * 8 + 4),
    }
    total = size_text(sum(found["decode_memory"].values()))
    assert f"weights {size_text(weights + graphs)} once, {total} for each decode" in shown.out


def test_a_bundle_whose_graphs_are_captured(
    lopa: Lopa, doubles: Doubles, tmp_path: Path, tiny_bundle: Path
) -> None:
    write_bundle(tmp_path / "bundle", tiny_bundle)
    shown = lopa("doctor", tmp_path / "bundle")
    assert (shown.status, shown.err) == (0, "")
    assert "yes, TensorRT 11.4.0.106 on Double GPU, SM 8.9" in shown.out
    assert shown.out.count("captured, 1 replays") == 8
    assert "activations" in shown.out


def test_a_bundle_whose_graphs_cannot_be_captured(
    lopa: Lopa, doubles: Doubles, tmp_path: Path, tiny_bundle: Path
) -> None:
    write_bundle(tmp_path / "bundle", tiny_bundle)
    doubles.library.uncapturable = True
    shown = lopa("doctor", tmp_path / "bundle")
    assert (shown.status, shown.err) == (0, "")
    assert shown.out.count("plain: cudaStreamEndCapture failed") == 8
    shown = lopa("doctor", tmp_path / "bundle", "--strict")
    assert shown.status == 1
    assert shown.err.startswith("lopa: error: instance b1-w24-c64-r24 runs without a CUDA graph: ")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("command", ["doctor", "generate"])
def test_a_bundle_of_another_gpu_is_one_line_and_exit_1(
    lopa: Lopa, doubles: Doubles, tmp_path: Path, tiny_bundle: Path, command: str
) -> None:
    write_bundle(tmp_path / "bundle", tiny_bundle, compute_capabilities=(120,))
    more = ["--prompt", "hello"] if command == "generate" else []
    shown = lopa(command, tmp_path / "bundle", *more)
    assert (shown.status, shown.err) == (
        1,
        "lopa: error: this bundle cannot run here: it was built for SM 12.0, the GPU here "
        "(Double GPU) has SM 8.9; build it again for this machine\n",
    )


def test_missing_libraries_are_one_line_and_exit_1(
    lopa: Lopa, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_bundle: Path
) -> None:
    no_tensorrt(monkeypatch)
    write_bundle(tmp_path / "bundle", tiny_bundle)
    shown = lopa("generate", tmp_path / "bundle", "--prompt", "hello")
    assert (shown.status, shown.err) == (
        1,
        "lopa: error: TensorRT is not installed; install it with: pip install 'lopa[tensorrt]'\n",
    )


def test_a_failed_capture_is_a_warning_or_with_strict_an_error(
    lopa: Lopa, doubles: Doubles, tmp_path: Path, tiny_bundle: Path
) -> None:
    write_bundle(tmp_path / "bundle", tiny_bundle)
    command = ["generate", tmp_path / "bundle", "--prompt", "hello", "--max-new-tokens", 8, "-q"]
    expected = lopa(*command)
    assert (expected.status, expected.err) == (0, "")
    doubles.library.uncapturable = True
    shown = lopa(*command)
    assert (shown.status, shown.out) == (0, expected.out)
    lines = shown.err.splitlines()
    assert lines
    assert all(line.startswith("lopa: warning: instance b") for line in lines)
    shown = lopa(*command, "--strict")
    assert (shown.status, shown.out) == (1, "")
    assert shown.err.startswith("lopa: error: instance b")
    assert shown.err.count("\n") == 1


def test_low_memory_says_what_it_saves_and_costs(lopa: Lopa, tiny_bundle: Path) -> None:
    command = ["generate", tiny_bundle, "--raw", "--max-new-tokens", 8, "--low-memory"]
    shown = lopa(*command, "--prompt", "hello")
    assert shown.status == 0
    assert "low memory: 4 of 8 instances, about " in shown.err
    assert "share 24 window tokens instead of 48" in shown.err
    shown = lopa(*command, "--prompt", "x" * 30)
    assert shown.status == 1
    assert "needs a step of 1 branch by " in shown.err
