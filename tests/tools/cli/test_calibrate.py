from __future__ import annotations

import json
from pathlib import Path

import pytest
from lopa.runtime.manifest import read_bundle, read_model

from .conftest import Lopa

SMALL = (
    "--samples",
    6,
    "--decodes",
    4,
    "--max-new-tokens",
    16,
    "--context",
    96,
    "--sensitivity",
    2,
)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"the answer is {number} or so"} for number in range(4)]
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


def test_calibrate_build_inspect(
    lopa: Lopa, tiny_checkpoint: Path, prompts: Path, tmp_path: Path
) -> None:
    out, bundle = tmp_path / "int8", tmp_path / "bundle"
    done = lopa("calibrate", tiny_checkpoint, "--prompts", prompts, "-o", out, *SMALL)
    assert done.status == 0, done.err
    for text in ("6 steps", "layers.1.gate+up", "predictions have the same likeliest token"):
        assert text in done.out
    assert "every quantised product runs as its precision" in done.out
    work = tmp_path / "int8.calibration"
    assert {path.name for path in work.iterdir()} >= {"ranges.json", "sensitivity.json", "states"}
    built = lopa("build", out, "-o", bundle, "--context", 96)
    assert built.status == 0, built.err
    assert "recipe int8: 1 fp16, " in built.out
    assert read_bundle(bundle).quantization == read_model(out).quantization
    shown = lopa("inspect", bundle)
    assert shown.status == 0
    assert "* -> int8, auto, smooth auto" in shown.out
    assert "of the tokens on 4 recorded steps" in shown.out
    made = lopa("generate", bundle, "--prompt", "the other one", "--max-new-tokens", 16)
    assert made.status == 0, made.err


def test_calibrate_as_json(lopa: Lopa, tiny_model: Path, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "weights"
    arguments = ("--prompts", prompts, "-o", out, *SMALL, "--json", "--recipe", "int8-weight")
    done = lopa("calibrate", tiny_model, *arguments)
    assert done.status == 0, done.err
    summary = json.loads(done.out)
    assert summary["precisions"] == {"fp16": 1, "int8-weight": 15}
    assert summary["bytes"] < summary["source_bytes"]
    assert summary["fidelity"]["agreement"] > 0.5
    assert sum(summary["strata"].values()) == 6


def test_dry_run_writes_nothing(
    lopa: Lopa, tiny_model: Path, prompts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "int8"
    done = lopa("calibrate", tiny_model, "--prompts", prompts, "-o", out, "--dry-run")
    assert done.status == 0
    assert "* -> int8, auto, smooth auto" in done.out
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.jsonl"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--prompts", "absent.jsonl"), "cannot read prompts from absent.jsonl"),
        (("--recipe", "int3"), "recipe is 'int3', expected one of"),
        (("--precision", "fp16"), "was exported with precision fp32, not fp16"),
        (("--context", "4096"), "context 4096 is longer than the model's 2048 positions"),
    ],
)
def test_faults_are_one_line(
    lopa: Lopa,
    tiny_model: Path,
    prompts: Path,
    tmp_path: Path,
    change: tuple[str, str],
    message: str,
) -> None:
    out = tmp_path / "int8"
    arguments = {"--prompts": str(prompts), "--samples": "6"} | {change[0]: change[1]}
    flags = [part for pair in arguments.items() for part in pair]
    done = lopa("calibrate", tiny_model, "-o", out, *flags)
    assert done.status == 1
    assert message in done.err
    assert done.err.count("\n") == 1
    assert not out.exists()
