from __future__ import annotations

import json
from pathlib import Path

import pytest
from lopa.export import model_folder
from lopa.runtime.manifest import read_model, verify_files

from ...export.tiny_checkpoint import write_adapter
from .conftest import Lopa


def test_export_writes_a_model_folder(lopa: Lopa, tiny_checkpoint: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "lora", tiny_checkpoint)
    out = tmp_path / "model"
    flags = ["--adapter", adapter, "--precision", "fp16", "--candidates", 3]
    shown = lopa("export", tiny_checkpoint, "-o", out, *flags)
    assert (shown.status, shown.err) == (0, "")
    manifest = read_model(out)
    verify_files(out, manifest.files)
    assert (manifest.graph.precision, manifest.model.candidates) == ("fp16", 3)
    assert manifest.source.adapter == "lora"
    assert shown.out.startswith(f"exported {out}\n")
    for text in ("Dream (dream family), 2 layers", "weights.data", f"lopa build {out} -o BUNDLE"):
        assert text in shown.out


def test_json_summary(
    lopa: Lopa, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = read_model(tiny_model)
    monkeypatch.setattr(model_folder, "export_model", lambda *arguments, **settings: made)
    shown = lopa("export", "checkpoint", "-o", tmp_path / "model", "--json")
    assert shown.status == 0
    summary = json.loads(shown.out)
    assert summary.pop("seconds") >= 0
    files = {name: file.bytes for name, file in made.files.items()}
    assert summary == {
        "output": str(tmp_path / "model"),
        "family": "dream",
        "precision": "fp32",
        "files": files,
        "bytes": sum(files.values()),
        "versions": made.versions,
    }
