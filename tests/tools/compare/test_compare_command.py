from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from lopa.runtime.manifest import sha256_of
from lopa.tools.compare.thresholds import THRESHOLDS
from polygraphy.comparator import RunResults

from ...runtime.engines.tensorrt.bundle import install, write_bundle
from .conftest import DECODE, PROMPTS, Bend, Lopa, wordless


def test_precisions_of_a_model(
    lopa: Lopa, tiny_bundle: Path, half_bundle: Path, prompts: Path
) -> None:
    shown = lopa("compare", tiny_bundle, half_bundle, "--prompts", prompts, *DECODE)
    lines = shown.out.splitlines()
    assert lines[0] == "lopa compare: fp32 and fp16"
    assert shown.err == ""
    assert shown.status == 0, shown.out
    digest = sha256_of(half_bundle / "step.onnx")[:12]
    assert any(f"step.onnx {digest}" in line for line in lines)
    assert any(line.split()[:3] == ["passed", "--min-top1", "0.99,"] for line in lines)


def test_report_as_json(lopa: Lopa, tiny_bundle: Path, half_bundle: Path, prompts: Path) -> None:
    shown = lopa("compare", tiny_bundle, half_bundle, "--prompts", prompts, *DECODE, "--json")
    found = json.loads(shown.out)
    assert found["a"]["sha256"]["manifest.json"] == sha256_of(tiny_bundle / "manifest.json")
    assert found["b"]["precision"] == "fp16"
    assert found["b"]["versions"].keys() >= {"lopa", "torch", "onnxruntime"}
    steps, decodes = found["steps"], found["decodes"]
    assert 0 < steps["outputs"]["log_probs"]["mean_abs"] < steps["outputs"]["log_probs"]["max_abs"]
    assert steps["outputs"].keys() == {"log_probs", "entropy", "window_keys", "window_values"}
    assert steps["agreement"]["positions"] > 100
    assert 0 < steps["agreement"]["kl_mean"] < 1e-3
    assert decodes["prompts"] == len(PROMPTS)
    assert decodes["right"] is None
    assert [item["flag"] for item in found["checks"]] == [
        item.flag for item in THRESHOLDS if item.flag != "--max-score-loss"
    ]
    assert all(item["kept"] for item in found["checks"])


@pytest.mark.parametrize("runner", ["lopa", "polygraphy"])
def test_a_bundle_against_itself_and_its_checkpoint(
    lopa: Lopa, tiny_bundle: Path, tiny_checkpoint: Path, prompts: Path, runner: str
) -> None:
    flags = ("--prompts", prompts, *DECODE, "--json", "--runner", runner, "--max-inputs", 5)
    itself = json.loads(lopa("compare", tiny_bundle, tiny_bundle, *flags).out)
    assert itself["steps"]["steps"] == 5
    assert {error["max_abs"] for error in itself["steps"]["outputs"].values()} == {0}
    assert itself["decodes"]["identical"] == len(PROMPTS)
    shown = lopa("compare", tiny_bundle, tiny_checkpoint, *flags)
    eager = json.loads(shown.out)
    assert shown.status == 0
    assert eager["b"]["target"] == "torch"
    assert eager["a"]["checkpoint_fingerprint"] == eager["b"]["checkpoint_fingerprint"]
    assert 0 < eager["steps"]["outputs"]["window_keys"]["max_abs"] < 1e-4
    assert eager["decodes"]["token_agreement"] == 1
    assert eager["decodes"]["winner_agreement"] == 1


def test_steps_run_again_on_a_tensorrt_engine(
    lopa: Lopa,
    tiny_bundle: Path,
    prompts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_bundle(tmp_path / "static", tiny_bundle)
    install(monkeypatch)
    shown = lopa("compare", tiny_bundle, tmp_path / "static", "--prompts", prompts, *DECODE)
    assert (shown.status, shown.err) == (0, "")
    assert f"{tmp_path / 'static'}  tensorrt fp32" in shown.out
    assert "failed" not in shown.out


def test_another_weight_fails_and_is_found(
    lopa: Lopa, tiny_bundle: Path, bent: Bend, prompts: Path
) -> None:
    other = bent("layers.1.gate.weight")
    flags = ("--prompts", prompts, *DECODE)
    shown = lopa("compare", tiny_bundle, other, *flags, "--min-top1", 0.5)
    assert shown.status == 1
    failed = shown.out[shown.out.index("FAILED") :].splitlines()
    assert failed[0].split(None, 1)[1].startswith("error of log_probs ")
    assert failed[0].endswith(", expected at most 0.01 (--max-abs)")
    assert not any("--min-top1" in line for line in failed)
    shown = lopa("compare", tiny_bundle, other, *flags, "--bisect")
    assert shown.status == 1
    assert "they part at layers.1, gate (MatMul): error " in shown.out.splitlines()[-1]
    shown = lopa("compare", tiny_bundle, tiny_bundle, *flags, "--bisect", "--json")
    assert shown.status == 0
    assert json.loads(shown.out)["verdict"] == "no layer parts by more than 0.0001"


def test_problems_are_graded(
    lopa: Lopa, tiny_bundle: Path, half_bundle: Path, tmp_path: Path
) -> None:
    path = tmp_path / "cd.jsonl"
    row = {"input": "4,2,3,36", "output": "1+1=2"}
    path.write_text(json.dumps(row) + "\n")
    flags = ("--problems", f"countdown={path}", "--raw", *DECODE)
    shown = lopa("compare", tiny_bundle, half_bundle, *flags)
    assert "score 0 and 0 of 1 right, loss 0 points" in shown.out
    assert "--max-score-loss 0.5" in shown.out


def test_polygraphy_runs_our_inputs_and_outputs(
    lopa: Lopa, tiny_bundle: Path, half_bundle: Path, prompts: Path, tmp_path: Path
) -> None:
    inputs, outputs = tmp_path / "inputs.json", tmp_path / "outputs.json"
    record = ("--prompts", prompts, *DECODE, "--no-decode", "--max-inputs", 2)
    keep = ("--save-inputs", inputs, "--save-outputs", outputs)
    first = lopa("compare", tiny_bundle, half_bundle, *record, *keep, "--json")
    assert first.status == 0
    assert json.loads(first.out)["decodes"] is None
    again = lopa("compare", tiny_bundle, half_bundle, "--load-inputs", inputs, "--no-decode")
    assert again.status == 0
    assert "2 steps" in again.out
    command = [
        *(str(Path(sys.executable).with_name("polygraphy")), "run"),
        *(str(tiny_bundle / "step.onnx"), "--onnxrt"),
        *("--load-inputs", str(inputs), "--load-outputs", str(outputs)),
        *("--check-error-stat", "max", "--rtol", "0"),
        *("--atol", "1e-4", "token_ids:1000"),  # any two candidates may change places
    ]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert "vs. A tiny-bundle | Passed: 2/2 iterations" in ran.stdout, ran.stdout + ran.stderr
    assert "A tiny-bundle vs. B tiny-half-bundle | Passed: 0/2 iterations" in ran.stdout
    assert ran.returncode == 1


def test_outputs_are_saved_again_over_the_earlier_ones(
    lopa: Lopa, tiny_bundle: Path, prompts: Path, tmp_path: Path
) -> None:
    inputs, outputs = tmp_path / "inputs.json", tmp_path / "outputs.json"
    flags = ("--no-decode", "--max-inputs", 1, *DECODE)
    keep = ("--save-inputs", inputs, "--save-outputs", outputs)
    for _ in range(2):
        shown = lopa("compare", tiny_bundle, tiny_bundle, "--prompts", prompts, *flags, *keep)
        assert (shown.status, shown.err) == (0, "")
    runs = RunResults.load(str(outputs))
    assert [name for name, _ in runs] == ["A tiny-bundle", "B tiny-bundle"]
    assert [len(iterations) for _, iterations in runs] == [1, 1]
    (tmp_path / "notes.json").write_text("{}")
    other = (*flags, "--load-inputs", inputs, "--save-outputs", tmp_path / "notes.json", "--force")
    assert lopa("compare", tiny_bundle, tiny_bundle, *other).status == 0
    assert len(RunResults.load(str(tmp_path / "notes.json"))) == 2


def test_a_bundle_without_tokenizer_takes_ids(
    lopa: Lopa, tiny_bundle: Path, prompts: Path, tmp_path: Path
) -> None:
    mute = wordless(tiny_bundle, tmp_path / "wordless")
    shown = lopa("compare", mute, mute, "--prompts", prompts, *DECODE, "--max-inputs", 2)
    assert shown.status == 0
    assert f"{len(PROMPTS)} of {len(PROMPTS)} answers identical" in shown.out


def test_without_polygraphy_the_extra_is_named(
    lopa: Lopa, monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path
) -> None:
    for name in list(sys.modules):
        if name.startswith(("lopa.tools.compare", "polygraphy")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "polygraphy", None)
    shown = lopa("compare", tiny_bundle, tiny_bundle)
    assert shown.status == 1
    assert shown.err.startswith("lopa: error: lopa compare needs polygraphy")
    assert shown.err.endswith("is not installed; install it with: pip install 'lopa[parity]'\n")


def test_the_log_of_polygraphy_is_held_back_unless_asked_for(
    lopa: Lopa, tiny_bundle: Path, prompts: Path
) -> None:
    flags = ("--prompts", prompts, *DECODE, "--max-inputs", 1, "--no-decode", "--json")
    assert lopa("compare", tiny_bundle, tiny_bundle, *flags).err == ""
    shown = lopa("compare", tiny_bundle, tiny_bundle, *flags, "-v")
    assert "Accuracy Summary" in shown.err
    assert json.loads(shown.out)["steps"]["steps"] == 1
