"""A folder and a line of the table are all that a new target needs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lopa.runtime.targets import TARGETS, Target

from ...graphs.targets import toy
from .conftest import Lopa

SIZES = ["--lookahead=4", "--window=24,48", "--context=64,96", "--prefill=24"]


@pytest.fixture(autouse=True)
def table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TARGETS, "toy", Target("toy", toy.__name__, "toy", "toys"))


def test_it_builds_and_generates(
    lopa: Lopa, tiny_model: Path, tiny_bundle: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bundle"
    shown = lopa("build", tiny_model, "-o", out, "--target=toy", "--toyColour=Red", *SIZES)
    assert (shown.status, shown.err) == (0, "")
    assert f"built {out} for toy" in shown.out
    assert "painted red" in shown.out
    command = ["--prompt", "hello", "--max-new-tokens", 16, "--json"]
    decoded = [json.loads(lopa("generate", folder, *command).out) for folder in (out, tiny_bundle)]
    assert decoded[0]["token_ids"] == decoded[1]["token_ids"]
    assert len(decoded[0]["token_ids"]) == 16
    inspected = lopa("inspect", out)
    assert inspected.status == 0
    assert "none, it is a toy" in inspected.out


def test_its_flags_defaults_and_precisions_are_its_own(
    lopa: Lopa, tiny_model: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    shown = lopa("build", "--help")
    assert "Toy targets" in shown.out
    assert "--toy-colour red|deep-blue" in shown.out
    build = ["build", tiny_model, "-o", tmp_path / "x", "--dry-run"]
    plan = json.loads(lopa(*build, "--target=toy", "--json", "--context=96").out)
    assert sorted({item["window"] for item in plan["instances"]}) == [24, 32, 64, 96]
    for source, flags, said in (
        (tiny_model, ["--toy-colour=red"], "--target onnxruntime has no use for --toyColour; leave "
         "it out or choose one of toy"),
        (tiny_model, ["--target=toy", "--toy-colour=deepBlue"], "the toy is out of blue"),
        (tiny_model, ["--target=toy", "--versionCompatible"], "--target toy has no use for "
         "--versionCompatible; leave it out or choose one of tensorrt, tensorrt-rtx"),
        (tiny_model, ["--target=toy", "--fast-model=x"], "a bundle for toy holds one precision, a "
         "fast model is for onnxruntime; build a bundle of each"),
        (tiny_checkpoint, ["--target=toy", "--fp16"], "toy runs fp32 graphs, not fp16; choose one "
         "of them or a ONNX Runtime target or a TensorRT target"),
    ):  # fmt: skip
        shown = lopa("build", source, "-o", tmp_path / "x", *flags)
        assert (shown.status, shown.err) == (1, f"lopa: error: {said}\n")
    assert not (tmp_path / "x").exists()


def test_doctor_probes_it(lopa: Lopa) -> None:
    found = json.loads(lopa("doctor", "--json").out)
    assert found["targets"][-1] == {"name": "toy", "build": None, "run": "out of batteries"}
    assert {"name": "toy", "version": "1.0", "purpose": "builds and runs toy bundles"} in found[
        "libraries"
    ]
