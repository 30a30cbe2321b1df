from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lopa.export.checkpoint import CheckpointError, fingerprint, open_checkpoint

from .tiny_checkpoint import edit_json, read_tensors, write_checkpoint, write_tensors

INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("dtype", "stored"), [("float32", "F32"), ("float16", "F16"), ("bfloat16", "BF16")]
)
def test_reads_each_dtype_unchanged(tmp_path: Path, dtype: str, stored: str) -> None:
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, dtype=dtype))
    tensors = read_tensors(tmp_path / "model.safetensors")
    assert checkpoint.tensors.keys() == tensors.keys()
    assert {record.dtype for record in checkpoint.tensors.values()} == {stored}
    name = "model.layers.1.mlp.down_proj.weight"
    assert checkpoint.tensors[name].shape == (64, 128)
    assert checkpoint.read(name).dtype == getattr(torch, dtype)
    assert torch.equal(checkpoint.read(name), tensors[name])


def test_shards_give_the_same_tensors(tmp_path: Path) -> None:
    whole = open_checkpoint(write_checkpoint(tmp_path / "whole"))
    parts = open_checkpoint(write_checkpoint(tmp_path / "parts", shards=3))
    assert whole.tensors.keys() == parts.tensors.keys()
    assert len({record.file for record in parts.tensors.values()}) == 3
    assert all(torch.equal(whole.read(name), parts.read(name)) for name in whole.tensors)


def test_fingerprint_follows_content_not_place(tmp_path: Path) -> None:
    first = open_checkpoint(write_checkpoint(tmp_path / "a", shards=2))
    same = open_checkpoint(write_checkpoint(tmp_path / "b", shards=2))
    other = open_checkpoint(write_checkpoint(tmp_path / "c", shards=2, seed=1))
    assert fingerprint(first) == fingerprint(same)
    assert len(fingerprint(first)) == 64
    assert fingerprint(first) != fingerprint(other)
    edit_json(tmp_path / "b" / "config.json", rope_theta=5.0)
    assert fingerprint(first) != fingerprint(open_checkpoint(tmp_path / "b"))


def test_generation_config_is_optional(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path) / "generation_config.json").unlink()
    assert open_checkpoint(tmp_path).generation_config == {}


def test_all_faults_in_one_error(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, shards=4)
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "generation_config.json").write_text("[1]")
    (tmp_path / "model-00002-of-00004.safetensors").unlink()
    damaged = tmp_path / "model-00003-of-00004.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-8])
    index = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    known = next(name for name, file in index.items() if file.startswith("model-00001"))
    del index[known]
    index["invented"] = "model-00001-of-00004.safetensors"
    edit_json(tmp_path / INDEX, weight_map=index)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    text = str(caught.value)
    assert "config.json is not valid JSON" in text
    assert "generation_config.json holds list" in text
    assert "model-00002-of-00004.safetensors is missing" in text
    assert "model-00003-of-00004.safetensors is truncated or corrupt" in text
    assert f"the index does not place there: {known}" in text
    assert "no shard has: invented;" in text
    assert "\n" not in text


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, shards=2)
    extra = {"model.norm.weight": torch.ones(64)}
    index = json.loads((tmp_path / INDEX).read_text())
    write_tensors(tmp_path, extra)
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"stores again .* model\.norm\.weight"):
        open_checkpoint(tmp_path)


def test_unlisted_shard_is_a_stale_index(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, shards=2)
    (tmp_path / "model-00002-of-00002.safetensors").rename(
        tmp_path / "model-00009-of-00009.safetensors"
    )
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    assert "model-00002-of-00002.safetensors is missing" in str(caught.value)
    assert "model-00009-of-00009.safetensors has tensors the index does not" in str(caught.value)


@pytest.mark.parametrize("weight_map", [None, [], {"a": "../model.safetensors"}, {"a": 1}])
def test_invalid_weight_map(tmp_path: Path, weight_map: object) -> None:
    write_checkpoint(tmp_path, shards=2)
    edit_json(tmp_path / INDEX, weight_map=weight_map)
    with pytest.raises(CheckpointError, match="no valid weight_map"):
        open_checkpoint(tmp_path)


def test_shards_without_index(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path, shards=2) / INDEX).unlink()
    with pytest.raises(CheckpointError, match=r"index\.json is missing"):
        open_checkpoint(tmp_path)


def test_pickle_only(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path) / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pickled .* convert them to model"):
        open_checkpoint(tmp_path)


def test_no_weights_no_config_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such folder"):
        open_checkpoint(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"config\.json is missing.*no weights") as caught:
        open_checkpoint(tmp_path)
    assert len(caught.value.faults) == 2


def test_unsupported_dtype(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    tensors = read_tensors(tmp_path / "model.safetensors")
    write_tensors(tmp_path, tensors | {"model.norm.weight": torch.ones(64, dtype=torch.int8)})
    with pytest.raises(CheckpointError, match=r"stores model\.norm\.weight as I8, expected"):
        open_checkpoint(tmp_path)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_truncation_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = write_checkpoint(tmp_path_factory.mktemp("cut"), layers=1, hidden=8, heads=2)
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(CheckpointError, match="truncated or corrupt"):
        open_checkpoint(folder)
