from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from lopa.runtime.manifest import read_bundle, read_model

from .conftest import Lopa


def _edit(folder: Path, name: str = "manifest.json", **model: Any) -> Path:
    path = folder / name
    data = json.loads(path.read_text(encoding="utf-8"))
    data["model"] |= model
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tiny_bundle, tmp_path / "bundle")


def test_an_edit_is_refused_until_it_is_resealed(lopa: Lopa, bundle: Path) -> None:
    path = _edit(bundle, block_size=4)
    refused = lopa("generate", bundle, "--prompt", "hi", "--no-verify")
    assert refused.status == 1
    assert "model was changed" in refused.err
    assert len(refused.err.splitlines()) == 1
    shown = lopa("inspect", bundle, "--reseal", "--json")
    assert shown.status == 0
    found = json.loads(shown.out)
    assert (found["resealed"], found["changes"]) == (True, ["model was changed"])
    assert read_bundle(bundle).model.block_size == 4
    assert lopa("inspect", bundle).status == 0
    before = path.read_bytes()
    shown = lopa("inspect", bundle, "--reseal")
    assert "nothing: all is as it was sealed" in shown.out
    assert path.read_bytes() == before


def test_files_are_recorded_as_they_are(lopa: Lopa, bundle: Path) -> None:
    (bundle / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    (bundle / "chat_template.jinja").write_text("{{ messages[0].content }}")
    shown = lopa("inspect", bundle, "--reseal")
    assert shown.status == 0
    assert "tokenizer_config.json was 983 bytes" in shown.out
    assert "is now 35 bytes" in shown.out
    assert "chat_template.jinja was added: 25 bytes" in shown.out
    assert lopa("inspect", bundle).status == 0


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        ({"logit_shift": 2}, "logit_shift is 2, expected one of: 0, 1"),
        ({"candidates": 8}, "token_ids is [any, 16], the manifest says [any, 8]"),
        ({"mask_token_id": 310}, "mask_token_id 310 is no token of tokenizer.json"),
        ({"vocab_size": 293}, "mask_token_id is 293, outside the vocabulary of 293"),
    ],
)
def test_an_edit_that_cannot_be_right_is_not_sealed(
    lopa: Lopa, bundle: Path, model: dict[str, Any], fault: str
) -> None:
    path = _edit(bundle, **model)
    before = path.read_bytes()
    shown = lopa("inspect", bundle, "--reseal")
    assert (shown.status, shown.out) == (1, "")
    assert fault in shown.err
    assert path.read_bytes() == before
    assert sorted(p.name for p in bundle.iterdir()) == sorted([*_names(before), "manifest.json"])


def _names(manifest: bytes) -> list[str]:
    return list(json.loads(manifest)["files"])


def test_a_missing_file_cannot_be_resealed(lopa: Lopa, bundle: Path) -> None:
    (bundle / "weights.data").unlink()
    shown = lopa("inspect", bundle, "--reseal")
    assert shown.status == 1
    assert f"{bundle} lacks weights.data, which its manifest lists" in shown.err


def test_model_folders_and_older_schemas(lopa: Lopa, tiny_model: Path, tmp_path: Path) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    path = model / "model.json"
    data = json.loads(path.read_text(encoding="utf-8")) | {"schema": 1}
    del data["digests"]
    path.write_text(json.dumps(data), encoding="utf-8")
    assert "--reseal" in lopa("build", model, "-o", tmp_path / "b").err
    shown = lopa("inspect", model, "--reseal")
    assert shown.status == 0
    assert "schema 1, which had no digests, is now 2" in shown.out
    assert read_model(model) == read_model(tiny_model)
    _edit(model, "model.json", kv_heads=4)
    shown = lopa("inspect", model, "--reseal")
    assert shown.status == 1
    assert "cache_keys is [2, 2, any, 16], the manifest says [2, 4, any, 16]" in shown.err
