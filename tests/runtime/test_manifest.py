from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lopa.runtime.contract import Instance
from lopa.runtime.manifest import (
    BUNDLE_FILE,
    MODEL_FILE,
    SCHEMA_VERSION,
    FileRecord,
    GraphInfo,
    ManifestError,
    ModelManifest,
    Source,
    read_bundle,
    read_model,
    record_files,
    verify_files,
    write_manifest,
)

from .manifests import INSTANCES, bundle_manifest, model_info, write_edited


def test_bundle_round_trip(tmp_path: Path) -> None:
    manifest = bundle_manifest()
    assert write_manifest(tmp_path, manifest) == tmp_path / BUNDLE_FILE
    assert read_bundle(tmp_path) == manifest
    assert manifest.model_dtype == "float32"
    half = dataclasses.replace(manifest, graph=GraphInfo("step.onnx", "fp16", 18))
    assert half.model_dtype == "float16"


def test_model_round_trip(tmp_path: Path) -> None:
    manifest = ModelManifest(
        schema=SCHEMA_VERSION,
        contract=1,
        model=model_info(),
        graph=GraphInfo("step.onnx", "fp16", 18),
        source=Source("base", "ab" * 32, "adapter", "cd" * 32),
        versions={},
        files={"step.onnx": FileRecord(5, "cd" * 32)},
    )
    assert write_manifest(tmp_path, manifest) == tmp_path / MODEL_FILE
    assert read_model(tmp_path) == manifest


def test_the_same_manifest_gives_the_same_bytes(tmp_path: Path) -> None:
    first = write_manifest(tmp_path, bundle_manifest()).read_bytes()
    assert write_manifest(tmp_path, bundle_manifest()).read_bytes() == first


def _set(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def edit(data: Any) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        (_set("extra", value=1), "unknown key extra"),
        (_set("model", "colour", value=1), "unknown key model.colour"),
        (lambda data: data["model"].pop("layers"), "key model.layers is missing"),
        (_set("model", "layers", value="2"), "model.layers is str, expected int"),
        (_set("model", "layers", value=True), "model.layers is bool, expected int"),
        (_set("model", "stop_token_ids", value=3), "model.stop_token_ids is int, expected tuple"),
        (_set("model", "stop_token_ids", value=["a"]), "model.stop_token_ids[0] is str, expected"),
        (_set("model", value=[]), "model is list, expected an object"),
        (_set("model", "logit_shift", value=2), "model: logit_shift is 2, expected one of: 0, 1"),
        (_set("model", "head_dim", value=-1), "model: head_dim is -1, expected 1 or more"),
        (_set("model", "mask_token_id", value=320), "model: mask_token_id is 320, outside the"),
        (_set("model", "pad_token_id", value=-1), "model: pad_token_id is -1, outside the"),
        (_set("model", "kv_heads", value=3), "model: heads 4 is no multiple of kv_heads 3"),
        (_set("model", "window_attention", value="no"), "window_attention is 'no', expected one"),
        (_set("graph", "precision", value="int3"), "graph: precision is 'int3', expected one of"),
        (_set("engine", "dynamic", value=1), "engine.dynamic is int, expected bool"),
        (_set("engine", "versions", value=[]), "engine.versions is list, expected"),
        (_set("source", "adapter", value=5), "source.adapter is int, expected str"),
        (_set("files", "step.onnx", value=5), "files.step.onnx is int, expected an object"),
        (_set("files", "step.onnx", "bytes", value=1.5), "files.step.onnx.bytes is float, expec"),
        (_set("instances", 1, "rows", value=0), "instances[1]: rows is 0, expected a positive"),
        (_set("instances", value=[]), "instances is empty, expected at least one"),
    ],
)
def test_fault(tmp_path: Path, edit: Callable[[dict[str, Any]], None], fault: str) -> None:
    with pytest.raises(ManifestError) as caught:
        read_bundle(write_edited(tmp_path, edit))
    assert fault in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / BUNDLE_FILE} is malformed: ")
    assert str(caught.value).endswith("; build it again")


STAMP: dict[str, Any] = {
    "compute_capabilities": [89],
    "platform": "linux-x86_64",
    "hardware_compatibility": "none",
    "version_compatible": False,
    "profiles": [instance.name for instance in INSTANCES],
    "graph_sha256": "ab" * 32,
    "settings": {},
}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"compute_capabilities": [-1, 89]}, "engine.stamp: compute_capabilities holds -1, expec"),
        ({"compute_capabilities": []}, "engine.stamp: compute_capabilities is empty"),
        ({"hardware_compatibility": "all"}, "engine.stamp: hardware_compatibility is 'all', expec"),
        ({"profiles": STAMP["profiles"][:2]}, "engine.stamp.profiles lacks the instance b1-w40-c6"),
        ({"profiles": [*STAMP["profiles"], "b1-w40-c64-r40"]}, "profiles names b1-w40-c64-r40 tw"),
        ({"profiles": [1]}, "engine.stamp.profiles[0] is int, expected str"),
        ({"version_compatible": "no"}, "engine.stamp.version_compatible is str, expected bool"),
    ],
)
def test_faults_of_a_stamp(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    assert read_bundle(write_edited(tmp_path, _set("engine", "stamp", value=STAMP)))
    with pytest.raises(ManifestError) as caught:
        read_bundle(write_edited(tmp_path, _set("engine", "stamp", value=STAMP | change)))
    assert fault in str(caught.value)


def test_every_fault_is_listed_at_once(tmp_path: Path) -> None:
    def edit(data: dict[str, Any]) -> None:
        del data["versions"]
        data["model"]["layers"] = None
        data["model"]["heads"] = 4.0
        data["graph"]["precision"] = "int3"
        data["colour"] = "red"

    with pytest.raises(ManifestError) as caught:
        read_bundle(write_edited(tmp_path, edit))
    for fault in (
        "unknown key colour",
        "key versions is missing",
        "model.layers is NoneType, expected int",
        "model.heads is float, expected int",
        "precision is 'int3'",
    ):
        assert fault in str(caught.value)


@pytest.mark.parametrize("key", ["schema", "contract"])
def test_a_newer_version_says_so_before_anything_else(tmp_path: Path, key: str) -> None:
    def edit(data: dict[str, Any]) -> None:
        data[key] = 3
        del data["model"]

    with pytest.raises(ManifestError, match=rf"{key} version 3 is newer than \d.*upgrade lopa"):
        read_bundle(write_edited(tmp_path, edit))


def test_missing_and_unreadable_manifests(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"is not a bundle \(lopa build\): no manifest.json"):
        read_bundle(tmp_path)
    with pytest.raises(ManifestError, match=r"is not an exported model folder .*: no model.json"):
        read_model(tmp_path)
    path = tmp_path / BUNDLE_FILE
    path.write_text('{"schema": 1, "model"', encoding="utf-8")
    with pytest.raises(ManifestError, match=r"not valid JSON .*; build it again"):
        read_bundle(tmp_path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ManifestError, match=r"is not UTF-8 text .*; build it again"):
        read_bundle(tmp_path)
    path.write_text("[1]", encoding="utf-8")
    with pytest.raises(ManifestError, match="holds list, expected an object"):
        read_bundle(tmp_path)


def test_recorded_files_verify_until_they_change(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(f"content {name}", encoding="utf-8")
    records = record_files(tmp_path, ["b", "a", "c"])
    assert list(records) == ["a", "b", "c"]
    assert records["a"] == FileRecord(9, hashlib.sha256(b"content a").hexdigest())
    verify_files(tmp_path, records)
    (tmp_path / "a").unlink()
    (tmp_path / "b").write_text("content B", encoding="utf-8")
    (tmp_path / "c").write_text("longer content c", encoding="utf-8")
    with pytest.raises(ManifestError) as caught:
        verify_files(tmp_path, records)
    assert str(caught.value) == (
        f"{tmp_path}: files do not match the manifest: a is missing; b was changed: sha256 differs "
        "from the manifest; c has 16 bytes, manifest says 9; build it again"
    )
    (tmp_path / MODEL_FILE).write_text("{}", encoding="utf-8")
    with pytest.raises(ManifestError, match=r"; export it again$"):
        verify_files(tmp_path, records)
    with pytest.raises(ManifestError, match=r"digests is missing; export it again, or accept"):
        read_model(tmp_path)


def test_instances_survive_as_dataclasses(tmp_path: Path) -> None:
    write_manifest(tmp_path, bundle_manifest((Instance(2, 3, 4, 5),)))
    assert read_bundle(tmp_path).instances == (Instance(2, 3, 4, 5),)
