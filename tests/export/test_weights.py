from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lopa.export.checkpoint import CheckpointError
from lopa.export.source import open_source
from lopa.export.spec import parameter_shapes

from .tiny_checkpoint import edit_json, read_tensors, write_adapter, write_checkpoint, write_tensors

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
PREFIX = "base_model.model."


def replace_tensors(
    folder: Path, changed: Mapping[str, torch.Tensor], drop: tuple[str, ...] = ()
) -> None:
    tensors = read_tensors(folder / "model.safetensors")
    kept = {name: tensor.clone() for name, tensor in tensors.items() if name not in drop}
    write_tensors(folder, kept | dict(changed))


@pytest.mark.parametrize(("tied", "shards"), [(False, 1), (True, 3)])
def test_weights_are_canonical(tmp_path: Path, tied: bool, shards: int) -> None:
    source = open_source(write_checkpoint(tmp_path, tied=tied, shards=shards, heads=2, kv_heads=1))
    assert source.spec.tied_head is tied
    assert ("head" in source.weights) is not tied
    shapes = parameter_shapes(source.spec)
    assert source.weights.keys() == shapes.keys()
    assert source.weights.shapes == shapes
    for name, shape in shapes.items():
        tensor = source.weights.read(name)
        assert tuple(tensor.shape) == shape
        assert tensor.is_contiguous()
        assert tensor.dtype == torch.float32
    stored = source.checkpoint.read("model.layers.0.self_attn.k_proj.weight")
    assert torch.equal(source.weights.read("layers.0.key.weight"), stored.T)
    assert torch.equal(source.weights.read("embed"), source.checkpoint.read(EMBED))


@pytest.mark.parametrize("stored", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("wanted", [torch.float32, torch.float16, torch.bfloat16])
def test_dtypes(tmp_path: Path, stored: str, wanted: torch.dtype) -> None:
    source = open_source(write_checkpoint(tmp_path, dtype=stored))
    tensor = source.weights.read("layers.1.up.weight", wanted)
    expected = source.checkpoint.read("model.layers.1.mlp.up_proj.weight").T.to(wanted)
    assert tensor.dtype == wanted
    assert torch.equal(tensor, expected)


def test_adapter_is_merged_in_float32(tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base", dtype="bfloat16")
    source = open_source(base, write_adapter(tmp_path / "adapter", base))
    saved = read_tensors(tmp_path / "adapter" / "adapter_model.safetensors")
    module = f"{PREFIX}model.layers.0.mlp.gate_proj.lora_"
    product = saved[f"{module}B.weight"] @ saved[f"{module}A.weight"]
    stored = source.checkpoint.read("model.layers.0.mlp.gate_proj.weight")
    expected = (stored.float() + 2 * product).T
    torch.testing.assert_close(source.weights.read("layers.0.gate.weight"), expected)
    half = source.weights.read("layers.0.gate.weight", torch.float16)
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), expected, atol=2e-3, rtol=1e-3)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 99), rank=st.integers(1, 9), alpha=st.floats(0.5, 64))
def test_merge_of_any_rank_and_alpha(
    tmp_path_factory: pytest.TempPathFactory, seed: int, rank: int, alpha: float
) -> None:
    folder = tmp_path_factory.mktemp("merge")
    base = write_checkpoint(folder / "base", layers=1, hidden=8, heads=2, intermediate=12)
    adapter = write_adapter(folder / "adapter", base, seed=seed, rank=rank, alpha=alpha)
    weights = open_source(base, adapter).weights
    saved = read_tensors(adapter / "adapter_model.safetensors")
    name = f"{PREFIX}model.layers.0.mlp.down_proj.lora_"
    product = (saved[f"{name}B.weight"] @ saved[f"{name}A.weight"]).double()
    stored = read_tensors(base / "model.safetensors")["model.layers.0.mlp.down_proj.weight"]
    expected = (stored.double() + alpha / rank * product).T.float()
    torch.testing.assert_close(weights.read("layers.0.down.weight"), expected)


def test_tied_head_stored_and_equal(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, tied=True)
    embed = read_tensors(tmp_path / "model.safetensors")[EMBED]
    replace_tensors(tmp_path, {HEAD: embed.clone()})
    source = open_source(tmp_path)
    assert source.spec.tied_head
    assert "head" not in source.weights


def test_tied_head_stored_and_different(tmp_path: Path) -> None:
    edit_json(write_checkpoint(tmp_path) / "config.json", tie_word_embeddings=True)
    with pytest.raises(CheckpointError, match=f"is true but {HEAD} differs from {EMBED}"):
        open_source(tmp_path)


def test_untied_head_absent(tmp_path: Path) -> None:
    edit_json(write_checkpoint(tmp_path, tied=True) / "config.json", tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match=f"{HEAD} is missing but config.json does not tie"):
        open_source(tmp_path)


def test_all_tensor_faults_in_one_error(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, hidden_act="gelu")
    edit_json(tmp_path / "special_tokens_map.json", mask_token="<|odd|>")
    with pytest.raises(CheckpointError) as caught:
        open_source(tmp_path)
    assert len(caught.value.faults) == 1  # without a tokenizer the config is not judged
    edit_json(tmp_path / "special_tokens_map.json", mask_token="<|mask|>")
    edit_json(tmp_path / "config.json", hidden_act="silu")
    gone = ("model.norm.weight", "model.layers.0.self_attn.q_proj.bias")
    extra = {"model.odd.weight": torch.ones(2), "model.rotary_emb.inv_freq": torch.ones(8)}
    wrong = {"model.layers.1.mlp.up_proj.weight": torch.ones(64, 128)}
    replace_tensors(tmp_path, extra | wrong, gone)
    with pytest.raises(CheckpointError) as caught:
        open_source(tmp_path)
    missing, unused, misshapen = caught.value.faults
    assert f"missing tensors: {gone[1]}, {gone[0]};" in missing
    assert "no use for: model.odd.weight;" in unused
    assert "model.layers.1.mlp.up_proj.weight is [64, 128], expected [128, 64]" in misshapen


def test_harmless_buffers_are_ignored(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    replace_tensors(tmp_path, buffer)
    assert "embed" in open_source(tmp_path).weights


def test_config_tokenizer_and_tensor_faults_together(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, shards=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    edit_json(tmp_path / "config.json", hidden_act="gelu", mask_token_id=None)
    with pytest.raises(CheckpointError) as caught:
        open_source(tmp_path)
    text = str(caught.value)
    assert "model-00002-of-00002.safetensors is missing" in text
    assert "hidden_act is 'gelu'" in text
    assert "mask_token_id: config.json says nothing" in text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e6])
def test_values_a_dtype_cannot_hold(tmp_path: Path, value: float) -> None:
    write_checkpoint(tmp_path)
    replace_tensors(tmp_path, {"model.norm.weight": torch.full((64,), value)})
    weights = open_source(tmp_path).weights
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight has NaN or infinite"):
        weights.read("final_norm", torch.float16)
    if value == 1e6:
        assert weights.read("final_norm")[0] == value


@pytest.mark.parametrize("saved", [["lm_head"], ["embed_tokens"], ["lm_head", "embed_tokens"]])
def test_saved_modules_untie_the_head(tmp_path: Path, saved: list[str]) -> None:
    base = write_checkpoint(tmp_path / "base", tied=True)
    adapter = write_adapter(tmp_path / "adapter", base, saved=saved)
    source = open_source(base, adapter)
    given = read_tensors(adapter / "adapter_model.safetensors")
    original = source.checkpoint.read(EMBED)
    assert not source.spec.tied_head
    assert torch.equal(source.weights.read("embed"), given.get(f"{PREFIX}{EMBED}", original))
    assert torch.equal(source.weights.read("head"), given.get(f"{PREFIX}{HEAD}", original).T)
    edit_json(adapter / "adapter_config.json", ensure_weight_tying=True)
    with pytest.raises(CheckpointError, match="ensure_weight_tying on a tied head"):
        open_source(base, adapter)


def test_lora_on_a_tied_head_unties_it(tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base", tied=True)
    adapter = write_adapter(tmp_path / "adapter", base, targets=["lm_head", "q_proj"])
    source = open_source(base, adapter)
    given = read_tensors(adapter / "adapter_model.safetensors")
    name = f"{PREFIX}lm_head.lora_"
    product = given[f"{name}B.weight"] @ given[f"{name}A.weight"]
    original = source.checkpoint.read(EMBED)
    assert not source.spec.tied_head
    assert torch.equal(source.weights.read("embed"), original)
    torch.testing.assert_close(source.weights.read("head"), (original + 2 * product).T)


def test_adapter_of_the_body_keeps_the_tie(tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base", tied=True)
    assert open_source(base, write_adapter(tmp_path / "adapter", base)).spec.tied_head


def test_source_record(tmp_path: Path) -> None:
    base = write_checkpoint(tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter", base)
    plain, merged = open_source(base).source, open_source(base, adapter).source
    assert (plain.checkpoint, plain.adapter, plain.adapter_fingerprint) == ("base", None, None)
    assert (merged.checkpoint, merged.adapter) == ("base", "adapter")
    assert merged.fingerprint == plain.fingerprint
    assert merged.adapter_fingerprint not in (None, merged.fingerprint)
