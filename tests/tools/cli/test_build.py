from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lopa.graphs import bundle
from lopa.runtime.manifest import read_bundle, read_model, verify_files, write_manifest

from ...export.tiny_checkpoint import write_adapter, write_checkpoint
from .conftest import Lopa

BUILD = """
import sys, time
from lopa.graphs import bundle
from lopa.tools.cli import main
def wait(*arguments):
    print("building", flush=True)
    time.sleep(60)
bundle.build_engine = wait
raise SystemExit(main(["build", *sys.argv[1:]]))
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_build_of_a_checkpoint_exports_it_first(
    lopa: Lopa, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "new" / "bundle"
    shown = lopa("build", tiny_checkpoint, "-o", out, "--json", "--candidates", 4)
    assert (shown.status, shown.err) == (0, "")
    manifest = read_bundle(out)
    verify_files(out, manifest.files)
    assert [item.name for item in manifest.instances] == [
        "b1-w1024-c1024-r1024",
        "b5-w1024-c1024-r5120",
    ]
    assert (manifest.graph.precision, manifest.model.candidates) == ("fp32", 4)
    assert names(out.parent) == ["bundle"]
    summary = json.loads(shown.out)
    assert summary["output"] == str(out)
    assert summary["files"] == {name: file.bytes for name, file in manifest.files.items()}
    assert summary["bytes"] == sum(summary["files"].values())
    assert summary["engine_versions"] == manifest.engine.versions
    assert summary["instances"][1] == {"branches": 5, "window": 1024, "context": 1024, "rows": 5120}
    assert summary["seconds"] > 0


def test_build_of_a_model_folder_with_the_spellings_of_trtexec(
    lopa: Lopa, tiny_model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bundle"
    graph = tiny_model / "step.onnx"
    sizes = ["--lookahead=2", "--window=32,16", "--context=64,128", "--prefill=64"]
    shown = lopa("build", f"--onnx={graph}", f"--saveEngine={out}", *sizes)
    assert shown.status == 0
    assert {item.name for item in read_bundle(out).instances} == {
        f"b{branches}-w{window}-c{context}-r{branches * window}"
        for branches, window in ((1, 16), (1, 32), (3, 16), (3, 32), (1, 64))
        for context in (64, 128)
    }
    assert shown.out.startswith(f"built {out} for onnxruntime\n")
    for text in ("b3-w32-c128-r96", "weights.data", "total", "onnxruntime 1.", "seconds"):
        assert text in shown.out
    assert lopa("build", tiny_model, "-o", out, "--force", "-q").out == ""


def test_context_is_never_longer_than_the_model(
    lopa: Lopa, tmp_path: Path, tiny_model: Path
) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    manifest = read_model(model)
    short = dataclasses.replace(manifest.model, max_positions=96)
    write_manifest(model, dataclasses.replace(manifest, model=short))
    plan = json.loads(lopa("build", model, "-o", tmp_path / "x", "--dry-run", "--json").out)
    assert {item["context"] for item in plan["instances"]} == {96}
    assert max(item["window"] for item in plan["instances"]) == 96
    shown = lopa("build", model, "-o", tmp_path / "x", "--context", "64,128")
    assert (shown.status, shown.err) == (
        1,
        "lopa: error: context 128 is longer than the model's 96 positions; "
        "choose --context 96 or less\n",
    )


def test_dry_run_writes_nothing(lopa: Lopa, tiny_checkpoint: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "adapter", tiny_checkpoint)
    command = ["build", tiny_checkpoint, "-o", tmp_path / "out" / "x", "--adapter", adapter]
    shown = lopa(*command, "--fp16", "--dry-run")
    assert shown.status == 0
    assert names(tmp_path) == ["adapter"]
    for text in (
        f"would build {tmp_path / 'out' / 'x'} for onnxruntime",
        f"checkpoint {tiny_checkpoint}",
        f"adapter {adapter}",
        "Dream (dream family), 2 layers, hidden 64",
        "fp16",
        "b5-w1024-c1024-r5120",
        "weights.data",
        "about ",
    ):
        assert text in shown.out
    plan = json.loads(lopa(*command, "--dry-run", "--json").out)
    assert (plan["dry_run"], plan["kind"], plan["family"]) == (True, "checkpoint", "dream")
    assert plan["adapter"] == str(adapter)


def test_planned_weights_are_what_an_export_writes(
    lopa: Lopa, tiny_checkpoint: Path, tiny_model: Path, tmp_path: Path
) -> None:
    command = ["export", tiny_checkpoint, "-o", tmp_path / "x", "--dry-run", "--json"]
    plan = json.loads(lopa(*command).out)
    written = {name: file.bytes for name, file in read_model(tiny_model).files.items()}
    assert plan["files"].keys() == written.keys()
    assert plan["bytes"] == pytest.approx(sum(written.values()), rel=0.2)


def test_model_folder_of_another_precision_is_refused(
    lopa: Lopa, tiny_model: Path, tmp_path: Path
) -> None:
    shown = lopa("build", tiny_model, "-o", tmp_path / "x", "--precision", "fp16")
    assert (shown.status, shown.err) == (
        1,
        f"lopa: error: {tiny_model} was exported with precision fp32, not fp16; export it again: "
        f"lopa export CHECKPOINT -o {tiny_model} --force --precision fp16\n",
    )
    shown = lopa("build", tiny_model, "-o", tmp_path / "x", "--candidates", 3, "--adapter", "lora")
    assert shown.err == (
        f"lopa: error: {tiny_model} was exported with candidates 16, not 3; {tiny_model} is "
        "exported already, an adapter is merged by the export; export it again: "
        f"lopa export CHECKPOINT -o {tiny_model} --force --candidates 3 --adapter lora\n"
    )


def test_what_is_no_source_is_refused(lopa: Lopa, tiny_bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "x"
    absent, empty, file = tmp_path / "absent", tmp_path / "empty", tmp_path / "file"
    empty.mkdir()
    file.touch()
    for source, message in {
        absent: f"{absent}: no such folder, expected a Hugging Face checkpoint (config.json, "
        "weights)",
        empty: f"{empty} has neither config.json (a Hugging Face checkpoint) nor model.json "
        "(a model folder made by lopa export)",
        file: f"{file} is a file, expected a checkpoint or model folder",
        tiny_bundle: f"{tiny_bundle} is a bundle already; decode with: "
        f"lopa generate {tiny_bundle} --prompt TEXT",
    }.items():
        shown = lopa("build", source, "-o", out)
        assert (shown.status, shown.err) == (1, f"lopa: error: {message}\n")
    assert not out.exists()


def test_faults_of_a_checkpoint_are_one_line(lopa: Lopa, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "tiny", shards=2)
    (checkpoint / "tokenizer.json").unlink()
    first, second = sorted(checkpoint.glob("model-*.safetensors"))
    first.write_bytes(first.read_bytes()[:1000])
    second.unlink()
    shown = lopa("build", checkpoint, "-o", tmp_path / "x")
    assert shown.status == 1
    assert shown.err.startswith(f"lopa: error: {checkpoint}: {first.name} is truncated or corrupt")
    assert f"; {second.name} is missing, the index places " in shown.err
    assert "; no tokenizer.json (nor vocab.json with merges.txt)" in shown.err
    assert shown.err.count("\n") == 1
    assert names(tmp_path) == ["tiny"]


def test_unknown_model_type(lopa: Lopa, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "tiny", model_type="llama")
    shown = lopa("export", checkpoint, "-o", tmp_path / "x")
    assert shown.status == 1
    assert shown.err == (
        f"lopa: error: {checkpoint / 'config.json'}: unsupported model_type 'llama'; supported: "
        "Dream, Fast_dLLM_Qwen, llada, llada2_moe, sdar, sdar_moe\n"
    )


@pytest.mark.parametrize("command", ["build", "export"])
def test_output_that_is_in_use(
    lopa: Lopa, command: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    expected = (
        f"lopa: error: output folder {tmp_path} is not empty; choose another or add --force\n"
    )
    for flags in ([], ["--dry-run"]):
        shown = lopa(command, tiny_checkpoint, "-o", tmp_path, *flags)
        assert (shown.status, shown.err) == (1, expected)
    assert names(tmp_path) == ["notes.txt"]


def test_interrupted_build_leaves_what_was_there(
    lopa: Lopa, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "bundle"
    out.mkdir()
    (out / "old").touch()

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bundle, "build_engine", interrupt)
    shown = lopa("build", tiny_model, "-o", out, "--force")
    assert (shown.status, shown.err) == (130, "lopa: interrupted\n")
    assert (names(tmp_path), names(out)) == (["bundle"], ["old"])


@pytest.mark.parametrize(
    ("number", "status", "left"),
    [(signal.SIGTERM, 128 + signal.SIGTERM, 0), (signal.SIGKILL, -signal.SIGKILL, 1)],
)
def test_killed_build_leaves_no_half_bundle(
    tiny_model: Path, tmp_path: Path, number: signal.Signals, status: int, left: int
) -> None:
    out = tmp_path / "bundle"
    with subprocess.Popen(
        [sys.executable, "-c", BUILD, str(tiny_model), "-o", str(out)],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "building\n"
        process.send_signal(number)
        assert process.wait() == status
    assert not out.exists()
    assert len(names(tmp_path)) == left  # a killed process cannot remove its temporary folder


def test_failed_export_leaves_no_temporary_folder(lopa: Lopa, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "tiny")
    shown = lopa("build", checkpoint, "-o", tmp_path / "x", "--candidates", 400)
    assert shown.status == 1
    assert "candidates is 400, expected 1 to 293" in shown.err
    assert names(tmp_path) == ["tiny"]
