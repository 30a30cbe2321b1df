from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from lopa.runtime.manifest import (
    TOKENIZER_FILES,
    read_bundle,
    record_files,
    sha256_of,
    write_manifest,
)
from lopa.tools.compare.thresholds import THRESHOLDS
from polygraphy.comparator import RunResults

from ...exported import Exports
from ...runtime.engines.tensorrt.bundle import install, write_bundle
from .conftest import PROMPTS, Bend, Lopa

DECODE = ("--max-new-tokens", 16, "--confidence", 0.3, "--threads", 1)


def deepened(bundle: Path, folder: Path) -> Path:
    """A copy of a bundle whose manifest tells of another model."""
    shutil.copytree(bundle, folder)
    manifest = read_bundle(folder)
    model = dataclasses.replace(manifest.model, layers=3, block_size=4)
    write_manifest(folder, dataclasses.replace(manifest, model=model))
    return folder


def wordless(bundle: Path, folder: Path) -> Path:
    """A copy of a bundle without its tokenizer."""
    shutil.copytree(bundle, folder)
    manifest = read_bundle(folder)
    files = dict(manifest.files)
    for name in TOKENIZER_FILES:
        if files.pop(name, None) is not None:
            (folder / name).unlink()
    write_manifest(folder, dataclasses.replace(manifest, files=files))
    return folder


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


def test_what_cannot_be_compared_is_one_line(
    lopa: Lopa, tiny_bundle: Path, tiny_model: Path, exports: Exports, prompts: Path, tmp_path: Path
) -> None:
    deeper = deepened(tiny_bundle, tmp_path / "deeper")
    narrow = exports.bundle("tiny-narrow", tiny_model, 4, (24,), (64,))
    mute = wordless(tiny_bundle, tmp_path / "wordless")
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000)
    cases: list[tuple[tuple[object, ...], str]] = [
        (
            (tiny_bundle, deeper),
            "are not the same model: layers is 2 and 3; block_size is 8 and 4",
        ),
        (
            (tiny_bundle, narrow),
            "windows {1: 48, 5: 48} (by branches), context 96, ",
        ),
        ((tiny_bundle, tiny_model), "is a model folder; parity is measured on saved engines"),
        ((tiny_bundle, tmp_path), "is neither a bundle (lopa build) nor a checkpoint"),
        ((tmp_path, tiny_bundle), "is not a bundle (lopa build)"),
        (
            (tiny_bundle, tmp_path / "none"),
            f"nothing at {tmp_path / 'none'}; expected a bundle (lopa build) or a checkpoint",
        ),
        ((tmp_path / "none", tiny_bundle), f"no bundle at {tmp_path / 'none'}; make one with: "),
        ((mute, tiny_bundle), "has no tokenizer; give --prompts FILE"),
        (
            (tiny_bundle, tiny_bundle, "--adapter", tmp_path),
            "--adapter is for a checkpoint",
        ),
        (
            (tiny_bundle, tiny_bundle, "--load-inputs", tmp_path / "none.json"),
            "no inputs at",
        ),
        (
            (tiny_bundle, tiny_bundle, "--prompts", prompts, "--save-inputs", tmp_path / "x"),
            "expected a name that ends in .json",
        ),
        (
            (tiny_bundle, tiny_bundle, "--bisect", "--save-outputs", tmp_path / "x.json"),
            "--save-outputs has no use here",
        ),
        (
            (tiny_bundle, tiny_bundle, "--no-decode", "--problems", prompts),
            "--problems has no use here: nothing is graded; --prompts takes prompts",
        ),
        ((tiny_bundle, tiny_bundle, "--bisect", "--problems", prompts), "--problems has no use"),
        (
            (tiny_bundle, tiny_bundle, "--load-inputs", deep, "--save-inputs", tmp_path / "x.json"),
            "--save-inputs has no use here: --load-inputs records none",
        ),
        ((tiny_bundle, tiny_bundle, "--force"), "--force has no use here: no file is saved"),
        (
            (tiny_bundle, tiny_bundle, "--load-inputs", deep, "--save-outputs", deep),
            "--load-inputs and --save-outputs name the same file",
        ),
        (
            (tiny_bundle, tiny_bundle, "--load-inputs", deep),
            "deep.json: not valid JSON (nested too deeply)",
        ),
        (
            (tiny_bundle, tiny_bundle, "--save-inputs", deep),
            "deep.json was not written by lopa compare; choose another name or replace it with",
        ),
        (
            (tiny_bundle, tiny_bundle, "--force", "--save-outputs", tiny_bundle / "manifest.json"),
            "manifest.json is a file of a bundle or model; choose another name",
        ),
        (
            (tiny_bundle, exports.root / "tiny-checkpoint", "--bisect", "--prompts", prompts),
            "--bisect walks the graphs of two onnxruntime bundles",
        ),
        (
            (tiny_bundle, tiny_bundle, "--prompts", prompts, "--lookahead", 9),
            "lookahead is 9, the bundle has 4 lookahead branches",
        ),
    ]
    for arguments, message in cases:
        shown = lopa("compare", *arguments)
        assert (shown.status, shown.out) == (1, ""), message
        assert message in shown.err
        assert shown.err.startswith("lopa: error: ")
        assert shown.err.count("\n") == 1
    assert not (tmp_path / "x").exists()
    assert deep.read_text() == "[" * 100_000


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("--min-top1", "2", "expected 0 to 1, got 2"),
        ("--min-token-agreement", "-0.1", "expected 0 to 1, got -0.1"),
        ("--min-winner-agreement", "nan", "expected a number, got 'nan'"),
        ("--max-abs", "-1", "expected 0 or more, got -1"),
        ("--max-drift", "-1e-9", "expected 0 or more, got -1e-9"),
        ("--max-kl", "-2", "expected 0 or more, got -2"),
        ("--max-score-loss", "-2", "expected 0 or more, got -2"),
        ("--bisect-tolerance", "-1", "expected 0 or more, got -1"),
    ],
)
def test_bounds_have_a_range(lopa: Lopa, flag: str, value: str, expected: str) -> None:
    shown = lopa("compare", "one", "two", f"{flag}={value}")
    assert (shown.status, shown.out) == (2, "")
    assert shown.err == f"lopa: error: argument {flag}: {expected}; see lopa compare --help\n"


@pytest.mark.parametrize("policy", ["fast", "auto"])
def test_two_precisions_are_compared_as_they_decode(
    lopa: Lopa, two_precisions: Path, prompts: Path, tmp_path: Path, policy: str
) -> None:
    flags = ("--prompts", prompts, *DECODE, "--precision-policy", policy)
    saved = ("--save-inputs", tmp_path / "inputs.json", "--max-inputs", 100)
    found = json.loads(
        lopa("compare", two_precisions, two_precisions, *flags, *saved, "--json").out
    )
    assert (found["precision_policy"], found["a"]["fast_precision"]) == (policy, "int8")
    steps, decodes = found["steps"], found["decodes"]
    assert {error["max_abs"] for error in steps["outputs"].values()} == {0}
    assert decodes["identical"] == len(PROMPTS)
    assert found["checks"][0]["expected"] == 0.98  # of a quantised graph
    if policy == "fast":
        assert steps["fast"] == steps["steps"] == decodes["steps"][0]
    else:  # a step that ran twice was recorded twice
        assert 0 < steps["fast"] < steps["steps"] > decodes["steps"][0]


def test_the_fast_graphs_are_compared_where_they_ran(
    lopa: Lopa, two_precisions: Path, prompts: Path, tmp_path: Path
) -> None:
    """The full graphs of the sides are the same, the fast ones are not."""
    other = tmp_path / "other"
    shutil.copytree(two_precisions, other)
    shutil.copy(other / "weights.data", other / "fast/weights.data")
    manifest = read_bundle(other)
    files = record_files(other, list(manifest.files))
    write_manifest(other, dataclasses.replace(manifest, files=files))
    inputs = tmp_path / "inputs.json"
    flags = ("--prompts", prompts, *DECODE)
    shown = lopa("compare", two_precisions, other, *flags)
    assert "top-1 100.00 %" in shown.out
    assert "fast graphs" not in shown.out
    saved = ("--save-inputs", inputs, "--max-inputs", 4)
    shown = lopa("compare", two_precisions, other, *flags, "--precision-policy", "fast", *saved)
    assert shown.out.startswith("lopa compare: fp32 and fp32, precision policy fast\n")
    assert "run by the fast graphs: 4 of 4" in shown.out
    assert f"{other}  onnxruntime fp32, fast int8" in shown.out
    loaded = ("--load-inputs", inputs, "--no-decode", "--threads", 1, "--json")
    errors = []
    for policy in ("full", "fast"):
        shown = lopa("compare", two_precisions, other, *loaded, "--precision-policy", policy)
        errors.append(json.loads(shown.out)["steps"]["outputs"]["log_probs"]["max_abs"])
    assert errors[0] == 0
    assert errors[1] > 0.01


@pytest.mark.parametrize("policy", ["fast", "auto"])
def test_one_precision_has_no_policy(
    lopa: Lopa,
    two_precisions: Path,
    tiny_bundle: Path,
    tiny_checkpoint: Path,
    prompts: Path,
    policy: str,
) -> None:
    flags = ("--prompts", prompts, *DECODE, "--precision-policy", policy)
    one = f"precision policy '{policy}' is for two precisions, "
    both = (two_precisions, two_precisions)
    cases: list[tuple[tuple[object, ...], str]] = [
        ((two_precisions, tiny_checkpoint), f"{one}{tiny_checkpoint} is a checkpoint: "),
        ((two_precisions, tiny_bundle), f"{one}{tiny_bundle} is a bundle of one precision: "),
        ((tiny_bundle, two_precisions), f"{one}{tiny_bundle} is a bundle of one precision: "),
        ((two_precisions, tiny_bundle, "--no-decode"), f"{one}{tiny_bundle} is a bundle"),
        ((*both, "--bisect"), "--bisect walks the full graphs; use it without"),
        ((*both, "--runner", "polygraphy"), "--runner polygraphy runs the full graphs; use it"),
    ]
    if policy == "auto":
        loaded = (*both, "--load-inputs", "steps.json")
        cases.append((loaded, "--load-inputs does not say which graph ran a step; use it without"))
    for sides, message in cases:
        shown = lopa("compare", *sides, *flags)
        assert (shown.status, shown.out) == (1, "")
        assert message in shown.err
        assert shown.err.count("\n") == 1


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
