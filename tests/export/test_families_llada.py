from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lopa.export.checkpoint import CheckpointError
from lopa.export.source import open_source

from .test_backbone import load
from .tiny_checkpoint import IM_END, MASK, PAD, edit_json, write_adapter
from .tiny_family import HIDDEN, LAYERS, VOCAB, Shapes, write_family

ROOT = "model.transformer"
HEAD, EMBED = f"{ROOT}.ff_out.weight", f"{ROOT}.wte.weight"
BLOCK_BIASES = {"attn_out": HIDDEN, "ff_proj": 48, "up_proj": 48, "ff_out": HIDDEN}


def biases(names: dict[str, int]) -> Shapes:
    return {
        f"{ROOT}.blocks.{layer}.{name}.bias": (width,)
        for layer in range(LAYERS)
        for name, width in names.items()
    }


def test_config_maps_to_the_spec(tmp_path: Path) -> None:
    spec = open_source(write_family(tmp_path, "llada")).spec
    info = spec.info
    assert (info.family, info.model_type) == ("llada", "llada")
    assert (info.layers, info.hidden_size, info.intermediate_size) == (LAYERS, HIDDEN, 48)
    assert (info.heads, info.kv_heads, info.head_dim) == (4, 2, 8)
    assert (info.vocab_size, info.max_positions) == (VOCAB, 256)
    assert (info.logit_shift, info.window_attention, info.block_size) == (0, "full", 32)
    assert (info.mask_token_id, info.pad_token_id, info.stop_token_ids) == (
        MASK,
        PAD,
        (PAD, IM_END),
    )
    assert (spec.rms_norm_eps, spec.rope_theta) == (1e-5, 500000.0)
    assert {spec.qkv_bias, spec.output_bias, spec.mlp_bias, spec.head_bias} == {False}
    assert (spec.tied_head, spec.qk_norm, spec.rotary_dim, spec.moe) == (False, False, None, None)


@pytest.mark.parametrize(
    ("canonical", "stored"),
    [
        ("layers.1.query.weight", "blocks.1.q_proj.weight"),
        ("layers.0.output.weight", "blocks.0.attn_out.weight"),
        ("layers.0.gate.weight", "blocks.0.ff_proj.weight"),
        ("layers.1.up.weight", "blocks.1.up_proj.weight"),
        ("layers.1.down.weight", "blocks.1.ff_out.weight"),
        ("layers.0.mlp_norm", "blocks.0.ff_norm.weight"),
        ("layers.0.attention_norm", "blocks.0.attn_norm.weight"),
        ("final_norm", "ln_f.weight"),
        ("head", "ff_out.weight"),
    ],
)
def test_tensors(tmp_path: Path, canonical: str, stored: str) -> None:
    source = open_source(write_family(tmp_path, "llada"))
    tensor = source.checkpoint.read(f"{ROOT}.{stored}")
    assert torch.equal(source.weights.read(canonical), tensor.T if tensor.ndim == 2 else tensor)


def test_head_and_embedding_have_their_own_size(tmp_path: Path) -> None:
    """embedding_size, not vocab_size, is the number of their rows."""
    info = open_source(write_family(tmp_path, "llada", vocab_size=294)).spec.info
    assert (info.vocab_size, info.tokenizer_size) == (VOCAB, 294)


def test_tied_head(tmp_path: Path) -> None:
    source = open_source(write_family(tmp_path, "llada", weight_tying=True, drop=[HEAD]))
    assert source.spec.tied_head
    assert "head" not in source.weights
    write_family(tmp_path, "llada", weight_tying=True)
    with pytest.raises(CheckpointError, match=f"weight_tying is true but {HEAD} differs"):
        open_source(tmp_path)
    write_family(tmp_path, "llada", drop=[HEAD])
    with pytest.raises(CheckpointError, match="set weight_tying to true if it is tied"):
        open_source(tmp_path)


def test_qkv_bias(tmp_path: Path) -> None:
    extra = biases({"q_proj": HIDDEN, "k_proj": 16, "v_proj": 16})
    source = open_source(write_family(tmp_path, "llada", include_qkv_bias=True, extra=extra))
    stored = source.checkpoint.read(f"{ROOT}.blocks.1.k_proj.bias")
    assert torch.equal(source.weights.read("layers.1.key.bias"), stored)
    assert "layers.1.output.bias" not in source.weights


def test_bias_everywhere(tmp_path: Path) -> None:
    qkv = {"q_proj": HIDDEN, "k_proj": 16, "v_proj": 16}
    extra = biases(qkv | BLOCK_BIASES) | {f"{ROOT}.ff_out.bias": (VOCAB,)}
    settings: dict[str, Any] = {"include_bias": True, "bias_for_layer_norm": False}
    source = open_source(write_family(tmp_path, "llada", extra=extra, **settings))
    for canonical, stored in (("layers.0.up.bias", "blocks.0.up_proj"), ("head_bias", "ff_out")):
        expected = source.checkpoint.read(f"{ROOT}.{stored}.bias")
        assert torch.equal(source.weights.read(canonical), expected)
    module, hidden = load(tmp_path), torch.randn(3, HIDDEN)
    with torch.no_grad():
        scaled = module.logits(hidden, torch.tensor([0.5])) * 0.5
        bias = source.weights.read("head_bias")
        assert module.head_bias is not None
        module.head_bias.zero_()
        torch.testing.assert_close(
            scaled - module.logits(hidden, torch.ones(1)), bias.expand(3, -1)
        )
    edit_json(tmp_path / "config.json", bias_for_layer_norm=None)
    with pytest.raises(CheckpointError, match="include_bias gives the norms a bias too"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("changes", "kv_heads"),
    [({"multi_query_attention": True}, 1), ({}, 4), ({"multi_query_attention": False}, 4)],
)
def test_kv_heads_that_follow(tmp_path: Path, changes: dict[str, Any], kv_heads: int) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_source(write_family(tmp_path, "llada", n_kv_heads=None, **changes))
    expected = f"k_proj.weight is [16, 32], expected [{8 * kv_heads}, 32]"
    assert expected in str(caught.value)


def test_mlp_size_that_follows(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"up_proj.weight is \[48, 32\], expected \[96, 32\]"):
        open_source(write_family(tmp_path, "llada", mlp_hidden_size=None, mlp_ratio=3))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"d_model": None}, "d_model is missing, expected a positive integer"),
        ({"n_layers": "2"}, "n_layers is '2', expected a positive integer"),
        ({"n_heads": 5}, "d_model 32 is no multiple of n_heads 5"),
        ({"activation_type": "swiglu"}, "activation_type is 'swiglu', only 'silu'"),
        ({"block_type": "sequential"}, "block_type is 'sequential', only 'llama'"),
        ({"layer_norm_type": "default"}, "layer_norm_type is 'default', only 'rms'"),
        ({"block_group_size": 2}, "block_group_size is 2, only 1 or null"),
        ({"alibi": True, "rope": False}, "alibi is True, only False or null"),
        ({"attention_layer_norm": True}, "attention_layer_norm is True"),
        ({"scale_logits": True}, "scale_logits is True"),
        ({"input_emb_norm": True}, "input_emb_norm is True"),
        ({"max_sequence_length": None}, "max_sequence_length is missing"),
        ({"weight_tying": 1}, "weight_tying is 1, expected true or false"),
    ],
)
def test_config_fault(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_source(write_family(tmp_path, "llada", **changes))
    assert any(f"config.json: {fault}" in found for found in caught.value.faults)


def test_mask_id_of_the_config_alone(tmp_path: Path) -> None:
    """Published tokenizers give the mask token no role."""
    write_family(tmp_path, "llada")
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        edit_json(tmp_path / file, mask_token=None)
    assert open_source(tmp_path).spec.info.mask_token_id == MASK
    edit_json(tmp_path / "config.json", mask_token_id=None)
    with pytest.raises(CheckpointError, match=r"mask_token_id: config\.json says nothing"):
        open_source(tmp_path)


def test_mask_id_contradiction_names_both_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_source(write_family(tmp_path, "llada", mask_token_id=5))
    said = f"config.json says 5, the tokenizer's mask_token says {MASK}; all must name the same id"
    assert said in str(caught.value)


def test_adapter(tmp_path: Path) -> None:
    base = write_family(tmp_path / "base", "llada")
    adapter = write_adapter(tmp_path / "adapter", base, targets=["q_proj", "attn_out"])
    source = open_source(base, adapter)
    assert source.adapter is not None
    update = source.adapter.updates[f"{ROOT}.blocks.1.attn_out.weight"]
    assert update.factor_a.shape == (4, HIDDEN)
    stored = source.checkpoint.read(f"{ROOT}.blocks.1.attn_out.weight").T
    assert (source.weights.read("layers.1.output.weight") - stored).abs().max() > 1e-3
