from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from lopa.graphs.bundle import build_bundle
from lopa.graphs.instances import plan_instances
from lopa.runtime.contract import LopaError
from lopa.runtime.manifest import (
    MODEL_FILE,
    read_bundle,
    read_model,
    record_files,
    write_manifest,
)

INSTANCES = plan_instances(2, [16, 32], [48], [32, 64])


EXPORT = """
import sys
from pathlib import Path
from lopa.export.model_folder import export_model
export_model(Path(sys.argv[1]), Path(sys.argv[2]), candidates=16)
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_bundle_is_self_contained(tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    written = build_bundle(tiny_model, out, INSTANCES)
    model = read_model(tiny_model)
    assert read_bundle(out) == written
    assert written.instances == INSTANCES
    assert (written.model, written.source) == (model.model, model.source)
    assert (written.engine.target, written.engine.dynamic) == ("onnxruntime", True)
    assert set(contents(out)) == {*written.files, "manifest.json"}
    assert set(written.files) == {
        "commit.onnx",
        "special_tokens_map.json",
        "step.onnx",
        "tokenizer.json",
        "tokenizer_config.json",
        "weights.data",
    }


def test_weights_are_stored_once_whatever_the_instances(tiny_model: Path, tmp_path: Path) -> None:
    weights = (tiny_model / "weights.data").stat().st_size
    sizes = []
    for name, instances in (("one", INSTANCES[:1]), ("all", INSTANCES)):
        build_bundle(tiny_model, tmp_path / name, instances)
        sizes.append(sum(len(data) for data in contents(tmp_path / name).values()))
    assert sizes[1] - sizes[0] < 2000  # lines of the manifest
    assert weights < sizes[1] < weights + 200_000


def test_the_same_checkpoint_and_settings_give_the_same_bytes(
    tiny_checkpoint: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """The second export is another process with another order of hashes."""
    again = tmp_path / "again"
    subprocess.run(
        [sys.executable, "-c", EXPORT, str(tiny_checkpoint), str(again)],
        check=True,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
    )
    assert contents(again) == contents(tiny_model)
    build_bundle(tiny_model, tmp_path / "one", INSTANCES)
    build_bundle(again, tmp_path / "two", INSTANCES)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_context_beyond_the_models_positions(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(LopaError, match="context 2049 is longer than the model's 2048 positions"):
        build_bundle(tiny_model, tmp_path / "out", plan_instances(0, [8], [], [32, 2049]))
    assert not (tmp_path / "out").exists()


def test_an_unknown_target_leaves_nothing(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(LopaError, match="target is 'npu', expected one of: onnxruntime, tensorrt"):
        build_bundle(tiny_model, tmp_path / "out", INSTANCES, target="npu")
    assert list(tmp_path.iterdir()) == []


def test_output_that_is_not_empty(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("", encoding="utf-8")
    with pytest.raises(LopaError, match="is not empty; choose another or add --force"):
        build_bundle(tiny_model, tmp_path, INSTANCES)
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.fixture
def model_copy(tiny_model: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    return folder


def test_a_changed_model_folder_is_refused(model_copy: Path, tmp_path: Path) -> None:
    (model_copy / "tokenizer.json").write_text("{}", encoding="utf-8")
    (model_copy / "step.onnx").unlink()
    with pytest.raises(LopaError, match=r"step.onnx is missing; tokenizer.json has 2 bytes"):
        build_bundle(model_copy, tmp_path / "out", INSTANCES)
    (model_copy / MODEL_FILE).unlink()
    with pytest.raises(LopaError, match="is not an exported model folder"):
        build_bundle(model_copy, tmp_path / "out", INSTANCES)
    assert not (tmp_path / "out").exists()


def _rerecord(folder: Path) -> None:
    """Accept the changed files of a model folder."""
    manifest = read_model(folder)
    files = record_files(folder, list(manifest.files))
    write_manifest(folder, dataclasses.replace(manifest, files=files))


def test_the_graph_is_linted_first(model_copy: Path, tmp_path: Path) -> None:
    graph = onnx.load(model_copy / "step.onnx", load_external_data=False)
    graph.graph.node.append(onnx.helper.make_node("Shape", ["input_ids"], ["shape"]))
    onnx.save(graph, model_copy / "step.onnx")
    _rerecord(model_copy)
    with pytest.raises(LopaError, match=r"step.onnx: 1 Shape node\(s\): not capturable"):
        build_bundle(model_copy, tmp_path / "out", INSTANCES)


def test_a_graph_that_does_not_load_is_no_bundle(model_copy: Path, tmp_path: Path) -> None:
    (model_copy / "weights.data").write_bytes(b"short")
    _rerecord(model_copy)
    with pytest.raises(LopaError, match="onnxruntime cannot load the graph"):
        build_bundle(model_copy, tmp_path / "out", INSTANCES)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_full_disk_keeps_the_old_bundle(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "bundle"
    build_bundle(tiny_model, out, INSTANCES)
    before = contents(out)

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(LopaError, match=r"writing .* failed at .*: No space left on device"):
        build_bundle(tiny_model, out, INSTANCES[:1], force=True)
    assert contents(out) == before
    assert list(tmp_path.iterdir()) == [out]


KILLED_BUILD = """
import os, signal, sys
from pathlib import Path
import lopa.graphs.bundle as bundle
from lopa.graphs.instances import plan_instances
def die(folder, manifest):
    os.kill(os.getpid(), signal.SIGKILL)
bundle.write_manifest = die
instances = plan_instances(0, [8], [], [8])
bundle.build_bundle(Path(sys.argv[1]), Path(sys.argv[2]), instances, force=True)
"""


@pytest.mark.parametrize("old", [True, False])
def test_a_killed_build_leaves_no_half_bundle(tiny_model: Path, tmp_path: Path, old: bool) -> None:
    out = tmp_path / "bundle"
    if old:
        build_bundle(tiny_model, out, INSTANCES)
    before: Any = contents(out) if old else None
    done = subprocess.run(
        [sys.executable, "-c", KILLED_BUILD, str(tiny_model), str(out)], check=False
    )
    assert done.returncode == -9
    assert out.exists() == old
    assert not old or contents(out) == before
    left = [path.name for path in tmp_path.iterdir() if path != out]
    assert all(name.startswith(".bundle.") and name.endswith(".partial") for name in left)
    build_bundle(tiny_model, out, INSTANCES, force=True)
    assert read_bundle(out).instances == INSTANCES
