"""The other commands on damaged bundles and model folders; what is refused leaves no output."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest

from .conftest import Record, chosen
from .damage import file_damages
from .drill import Drill, Outcome, Promise, Worker
from .fields import field_damages


def _ran(outcome: Outcome, out: Path) -> object:
    return outcome.status


def _files(outcome: Outcome, out: Path) -> object:
    """Hashes of what was written."""
    (path,) = (path for name in ("manifest.json", "model.json") if (path := out / name).is_file())
    return json.loads(path.read_text(encoding="utf-8"))["files"]


BUILD = Promise(
    lambda folder, out: ["build", folder, "-o", out, "--lookahead", 2, "--window", 24, "--json"],
    _files,
)
INSPECT = Promise(lambda folder, out: ["inspect", folder, "--json"], _ran, report=True)
DOCTOR = Promise(lambda folder, out: ["doctor", folder, "--json"], _ran)


def test_build(
    worker: Worker, tiny_model: Path, other_model: Path, tmp_path: Path, record: Record
) -> None:
    drill = Drill(worker, tiny_model, tmp_path, BUILD)
    files = chosen(file_damages(tiny_model, other_model, 11), 60, 11)
    fields = chosen(field_damages(tiny_model / "model.json", resealed=False), 30, 12)
    record("model folder, build", drill.run(chain(files, fields)))


def test_build_resealed(worker: Worker, tiny_model: Path, tmp_path: Path, record: Record) -> None:
    promise = Promise(BUILD.command, BUILD.result, exact=False)
    drill = Drill(worker, tiny_model, tmp_path, promise)
    fields = chosen(field_damages(tiny_model / "model.json", resealed=True), 30, 13)
    record("model folder, build", drill.run(fields))


def test_calibrate(
    worker: Worker, tiny_model: Path, other_model: Path, tmp_path: Path, record: Record
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "the answer"}\n{"prompt": "is 42"}\n', encoding="utf-8")
    few = ("--samples", 2, "--decodes", 2, "--max-new-tokens", 8, "--context", 64)

    def command(folder: Path, out: Path) -> list[object]:
        work = tmp_path / "out.calibration"
        recipe = ("--recipe", "int8-weight", "--sensitivity", 0, "--work", work, "--force")
        return ["calibrate", folder, "-o", out, "--prompts", prompts, *few, *recipe, "--json"]

    drill = Drill(worker, tiny_model, tmp_path, Promise(command, _files))
    files = chosen(file_damages(tiny_model, other_model, 14), 12, 14, most=120)
    fields = chosen(field_damages(tiny_model / "model.json", resealed=False), 8, 15, most=80)
    record("model folder, calibrate", drill.run(chain(files, fields)))


@pytest.mark.parametrize("subject", ["bundle", "model folder"])
def test_inspect(
    worker: Worker,
    tiny_bundle: Path,
    other_bundle: Path,
    tiny_model: Path,
    other_model: Path,
    subject: str,
    tmp_path: Path,
    record: Record,
) -> None:
    folder, other = (tiny_bundle, other_bundle)
    if subject == "model folder":
        folder, other = (tiny_model, other_model)
    manifest = folder / ("manifest.json" if subject == "bundle" else "model.json")
    drill = Drill(worker, folder, tmp_path, INSPECT)
    files = chosen(file_damages(folder, other, 16), 30, 16)
    fields = chosen(field_damages(manifest, resealed=False), 15, 17)
    again = chosen(field_damages(manifest, resealed=True), 15, 18)
    record(f"{subject}, inspect", drill.run(chain(files, fields, again)))


def test_reseal(
    worker: Worker, tiny_bundle: Path, other_bundle: Path, tmp_path: Path, record: Record
) -> None:
    """What it accepts is not wrong for being another model: somebody edited it on purpose."""
    promise = Promise(lambda folder, out: ["inspect", folder, "--reseal", "--json"], _ran)
    drill = Drill(worker, tiny_bundle, tmp_path, promise)
    files = chosen(file_damages(tiny_bundle, other_bundle, 23), 30, 23)
    fields = chosen(field_damages(tiny_bundle / "manifest.json", resealed=False), 30, 24)
    record("bundle, inspect --reseal", drill.run(chain(files, fields)))


def test_doctor(
    worker: Worker, tiny_bundle: Path, other_bundle: Path, tmp_path: Path, record: Record
) -> None:
    drill = Drill(worker, tiny_bundle, tmp_path, DOCTOR)
    files = chosen(file_damages(tiny_bundle, other_bundle, 19), 15, 19, most=120)
    fields = chosen(field_damages(tiny_bundle / "manifest.json", resealed=True), 15, 20, most=120)
    record("onnxruntime, doctor", drill.run(chain(files, fields)))


def test_compare(
    worker: Worker, tiny_bundle: Path, other_bundle: Path, tmp_path: Path, record: Record
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt_ids": [7, 30, 12]}\n', encoding="utf-8")
    few = ("--prompts", prompts, "--max-inputs", 2, "--max-new-tokens", 8, "--no-decode", "--json")
    promise = Promise(lambda folder, out: ["compare", tiny_bundle, folder, *few], _ran)
    drill = Drill(worker, tiny_bundle, tmp_path, promise)
    files = chosen(file_damages(tiny_bundle, other_bundle, 21), 10, 21, most=120)
    fields = chosen(field_damages(tiny_bundle / "manifest.json", resealed=False), 6, 22, most=120)
    record("onnxruntime, compare", drill.run(chain(files, fields)))
