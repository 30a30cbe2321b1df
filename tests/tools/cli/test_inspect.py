from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ...export.tiny_checkpoint import edit_json
from .conftest import Lopa


def test_json_is_the_manifest_and_the_verdict(lopa: Lopa, tiny_bundle: Path) -> None:
    shown = lopa("inspect", tiny_bundle, "--json")
    assert shown.status == 0
    found = json.loads(shown.out)
    assert (found.pop("verified"), found.pop("faults")) == (True, [])
    written = json.loads((tiny_bundle / "manifest.json").read_text(encoding="utf-8"))
    assert found == {name: value for name, value in written.items() if name != "digests"}


def test_report_of_a_bundle(lopa: Lopa, tiny_bundle: Path) -> None:
    shown = lopa("inspect", tiny_bundle)
    assert shown.status == 0
    manifest = json.loads((tiny_bundle / "manifest.json").read_text(encoding="utf-8"))
    for text in (
        "bundle for onnxruntime",
        "fp32, ONNX opset 18",
        "schema 2, contract 1",
        "4 heads, 2 kv heads of 16",
        "full attention, block 8, row i predicts i + 1",
        "b5-w48-c96-r240",
        "the engine takes any shape up to",
        "cache 49.2 kB, then the largest of each column",
        "24.6 kB       123 kB      1.41 MB        92.3 kB",
        "with --provider cuda, one per instance; lopa doctor tries them",
        "49.2 kB for 96 slots",  # 2 layers x 2 heads x 96 slots x 16 numbers x 4 bytes, twice
        manifest["files"]["weights.data"]["sha256"][:12],
        manifest["source"]["fingerprint"][:12],
        f"onnxruntime {manifest['engine']['versions']['onnxruntime']}",
        "yes, all files match",
    ):
        assert text in shown.out
    assert max(len(line) for line in shown.out.splitlines()) < 130


def test_report_of_a_model_folder(lopa: Lopa, tiny_model: Path) -> None:
    shown = lopa("inspect", tiny_model)
    assert shown.status == 0
    assert "exported model folder" in shown.out
    assert "instances" not in shown.out


def test_damaged_files_are_listed(lopa: Lopa, tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(tiny_bundle, tmp_path / "bundle")
    (bundle / "tokenizer.json").unlink()
    with (bundle / "step.onnx").open("ab") as file:
        file.write(b"x")
    size = (bundle / "step.onnx").stat().st_size
    faults = [f"step.onnx has {size} bytes, manifest says {size - 1}", "tokenizer.json is missing"]
    shown = lopa("inspect", bundle, "--json")
    assert shown.status == 1
    found = json.loads(shown.out)
    assert (found["verified"], found["faults"]) == (False, faults)
    shown = lopa("inspect", bundle)
    assert shown.status == 1
    assert all(f"NO: {fault}\n" in shown.out for fault in faults)


@pytest.mark.parametrize("schema", [3, "one"])
def test_manifest_that_cannot_be_read(
    lopa: Lopa, tiny_bundle: Path, tmp_path: Path, schema: object
) -> None:
    bundle = shutil.copytree(tiny_bundle, tmp_path / "bundle")
    edit_json(bundle / "manifest.json", schema=schema)
    shown = lopa("inspect", bundle)
    assert (shown.status, shown.out) == (1, "")
    known = {3: "schema version 3 is newer than 2", "one": "schema was changed"}
    assert known[schema] in shown.err


def test_folder_of_another_kind(lopa: Lopa, tmp_path: Path) -> None:
    assert lopa("inspect", tmp_path).err == (
        f"lopa: error: {tmp_path} is neither a bundle (manifest.json) nor an exported model folder "
        "(model.json)\n"
    )
    absent = tmp_path / "absent"
    assert lopa("inspect", absent).err == (
        f"lopa: error: no folder {absent}, expected a bundle or an exported model folder\n"
    )
