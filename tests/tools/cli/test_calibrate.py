from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lopa.calibration.calibrate import Calibrated
from lopa.calibration.fidelity import Fidelity
from lopa.calibration.gate import Kept
from lopa.calibration.plan import SitePlan
from lopa.calibration.recipe import Recipe
from lopa.calibration.sites import Product, Site
from lopa.calibration.trajectories import Decodes
from lopa.runtime.manifest import read_bundle, read_model
from lopa.tools.commands.calibrate import fidelity_lines

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


def test_few_steps_are_one_warning_line(
    lopa: Lopa, tiny_model: Path, prompts: Path, tmp_path: Path
) -> None:
    small = ("--max-new-tokens", 16, "--context", 96, "--sensitivity", 0)
    out = tmp_path / "weights"
    arguments = ("--prompts", prompts, "-o", out, *small, "--json", "--recipe", "int8-weight")
    done = lopa("calibrate", tiny_model, *arguments, "--decodes", 1)
    assert done.status == 0, done.err
    summary = json.loads(done.out)
    (warning,) = summary["warnings"]
    assert done.err == f"lopa: warning: {warning}\n"
    assert f"recorded {sum(summary['strata'].values())} of 96 steps, " in warning
    assert "of 64 typical ones" in warning
    assert warning.endswith("; give a larger --decodes or a larger --max-new-tokens")


def test_folder_of_somebody_else_is_refused(
    lopa: Lopa, tiny_model: Path, prompts: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    for dry in ((), ("--dry-run",)):
        arguments = ("--prompts", prompts, "-o", tmp_path / "out", "--work", tmp_path / "mine")
        done = lopa("calibrate", tiny_model, *arguments, *dry)
        assert done.status == 1
        assert done.err == (
            f"lopa: error: work folder {tmp_path / 'mine'} is not empty and no calibration made "
            "it; choose another --work folder or add --force\n"
        )
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("line", "context", "message"),
    [
        ({"prompt": "one " * 200}, 96, ":2: a prompt of "),
        ({"prompt_ids": [5, 4000]}, 96, ":2: prompt id 4000 is outside the vocabulary of 320"),
        ({"prompt_ids": []}, 96, ":2: the prompt is empty"),
        ({"prompt": "fine"}, 4096, "context 4096 is longer than the model's 2048 positions"),
    ],
)
def test_prompts_are_checked_before_the_export(
    lopa: Lopa,
    tiny_checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: dict[str, Any],
    context: int,
    message: str,
) -> None:
    def export(*arguments: object, **more: object) -> None:
        pytest.fail("exported")

    monkeypatch.setattr("lopa.export.model_folder.export_model", export)
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(item) for item in ({"prompt": "short"}, line)))
    flags = ("--prompts", file, "-o", tmp_path / "out", "--context", context)
    done = lopa("calibrate", tiny_checkpoint, *flags, "--max-new-tokens", 16)
    assert done.status == 1
    assert message in done.err
    assert "bundle" not in done.err
    assert done.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.jsonl"]


def test_work_folder_of_the_current_folder(
    lopa: Lopa, tiny_model: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    done = lopa("calibrate", tiny_model, "--prompts", prompts, "-o", ".", "--dry-run", "--json")
    assert done.status == 0, done.err
    assert json.loads(done.out)["work"] == str(tmp_path / "here.calibration")


@pytest.mark.parametrize(
    ("precision", "sentence"),
    [
        ("int8", "which float activations do not reach either"),
        ("int8-weight", "which is not reached: the activations are floats already"),
    ],
)
def test_sentence_on_what_is_not_reached(precision: str, sentence: str) -> None:
    site = Site("head", "x", (Product("head", "y", "head.weight", False),), None)
    done = SimpleNamespace(
        kept=Kept(Fidelity(100, 0.5, 0.5, 1.0)),
        recipe=Recipe("mine", ()),
        plans=(SitePlan(site, {"head": precision}),),
    )
    assert fidelity_lines(cast(Calibrated, done))[-1] == (
        "the recipe wants 99.70%, a drift of 0.004 nats at most and 99.00% of the tokens, "
        + sentence
    )


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


@pytest.mark.parametrize(
    ("finished", "message"),
    [(0, ""), (1, "; what was finished is kept, the same command goes on")],
)
def test_an_interrupt_says_what_is_kept(
    lopa: Lopa,
    tiny_model: Path,
    prompts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    finished: int,
    message: str,
) -> None:
    decode = Decodes.run

    def run(self: Decodes, number: int, *more: Any) -> tuple[int, ...]:
        if number == finished:
            raise KeyboardInterrupt
        return decode(self, number, *more)

    monkeypatch.setattr(Decodes, "run", run)
    done = lopa("calibrate", tiny_model, "--prompts", prompts, "-o", tmp_path / "int8", *SMALL)
    assert (done.status, done.out, done.err) == (130, "", f"lopa: interrupted{message}\n")
    assert (tmp_path / "int8.calibration").exists() == bool(finished)
