"""SDAR and Fast-dLLM v2: Qwen bodies with block-causal attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lopa.export.checkpoint import CheckpointError
from lopa.export.source import open_source

from .tiny_checkpoint import IM_END, MASK, PAD, edit_json
from .tiny_family import HIDDEN, LAYERS, Shapes, write_family


def test_sdar_config_maps_to_the_spec(tmp_path: Path) -> None:
    spec = open_source(write_family(tmp_path, "sdar")).spec
    info = spec.info
    assert (info.family, info.model_type) == ("sdar", "sdar")
    assert (info.layers, info.heads, info.kv_heads, info.head_dim) == (LAYERS, 4, 2, 16)
    assert (info.logit_shift, info.window_attention, info.block_size) == (0, "block-causal", 4)
    assert (info.mask_token_id, info.pad_token_id) == (MASK, PAD)
    assert info.stop_token_ids == (PAD, IM_END)
    assert (spec.qk_norm, spec.qkv_bias, spec.output_bias) == (True, False, False)


def test_fast_dllm_config_maps_to_the_spec(tmp_path: Path) -> None:
    spec = open_source(write_family(tmp_path, "Fast_dLLM_Qwen")).spec
    info = spec.info
    assert (info.family, info.model_type) == ("fast-dllm-v2", "Fast_dLLM_Qwen")
    assert (info.heads, info.kv_heads, info.head_dim) == (4, 2, 8)
    assert (info.logit_shift, info.window_attention, info.block_size) == (1, "block-causal", 32)
    assert (spec.qk_norm, spec.qkv_bias, spec.output_bias) == (False, True, False)


@pytest.mark.parametrize(
    ("model_type", "canonical", "stored"),
    [
        ("sdar", "layers.1.query.weight", "layers.1.self_attn.q_proj.weight"),
        ("sdar", "layers.1.query_norm", "layers.1.self_attn.q_norm.weight"),
        ("sdar", "layers.0.key_norm", "layers.0.self_attn.k_norm.weight"),
        ("sdar", "layers.0.output.weight", "layers.0.self_attn.o_proj.weight"),
        ("sdar", "layers.0.down.weight", "layers.0.mlp.down_proj.weight"),
        ("Fast_dLLM_Qwen", "layers.1.value.weight", "layers.1.self_attn.v_proj.weight"),
        ("Fast_dLLM_Qwen", "layers.1.value.bias", "layers.1.self_attn.v_proj.bias"),
        ("Fast_dLLM_Qwen", "layers.0.mlp_norm", "layers.0.post_attention_layernorm.weight"),
    ],
)
def test_tensors(tmp_path: Path, model_type: str, canonical: str, stored: str) -> None:
    source = open_source(write_family(tmp_path, model_type))
    tensor = source.checkpoint.read(f"model.{stored}")
    assert torch.equal(source.weights.read(canonical), tensor.T if tensor.ndim == 2 else tensor)


def test_attention_bias_of_sdar_covers_the_output(tmp_path: Path) -> None:
    widths = {"q": 64, "k": 32, "v": 32, "o": HIDDEN}
    extra: Shapes = {
        f"model.layers.{layer}.self_attn.{name}_proj.bias": (width,)
        for layer in range(LAYERS)
        for name, width in widths.items()
    }
    source = open_source(write_family(tmp_path, "sdar", attention_bias=True, extra=extra))
    stored = source.checkpoint.read("model.layers.1.self_attn.o_proj.bias")
    assert torch.equal(source.weights.read("layers.1.output.bias"), stored)


@pytest.mark.parametrize("model_type", ["sdar", "Fast_dLLM_Qwen"])
def test_tied_head(tmp_path: Path, model_type: str) -> None:
    settings: dict[str, Any] = {"tie_word_embeddings": True, "drop": ["lm_head.weight"]}
    assert open_source(write_family(tmp_path, model_type, **settings)).spec.tied_head


@pytest.mark.parametrize("model_type", ["sdar", "sdar_moe"])
def test_the_block_length_of_sdar_must_be_stated(tmp_path: Path, model_type: str) -> None:
    write_family(tmp_path, model_type, block_size=None)
    with pytest.raises(CheckpointError, match="block_size is missing, expected a positive"):
        open_source(tmp_path)
    edit_json(tmp_path / "config.json", block_length=16)
    assert open_source(tmp_path).spec.info.block_size == 16


def test_block_length_of_fast_dllm(tmp_path: Path) -> None:
    assert (
        open_source(write_family(tmp_path, "Fast_dLLM_Qwen", bd_size=8)).spec.info.block_size == 8
    )


def test_pad_of_sdar_may_come_from_any_file(tmp_path: Path) -> None:
    write_family(tmp_path, "sdar")
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        edit_json(tmp_path / file, pad_token=None)
    with pytest.raises(CheckpointError) as caught:
        open_source(tmp_path)
    assert caught.value.faults == (
        "pad_token_id: config.json says nothing, the tokenizer's pad_token says nothing, "
        "generation_config.json says nothing; one must name it, add it to config.json",
    )
    (tmp_path / "generation_config.json").write_text('{"pad_token_id": 7}', encoding="utf-8")
    assert open_source(tmp_path).spec.info.pad_token_id == 7
    edit_json(tmp_path / "config.json", pad_token_id=8)
    with pytest.raises(CheckpointError, match=r"config\.json says 8, generation_config\.json says"):
        open_source(tmp_path)


def test_fast_dllm_takes_the_mask_from_the_tokenizer_and_the_pad_from_its_config(
    tmp_path: Path,
) -> None:
    """Published files pad with different tokens; config.json decides, all of them stop."""
    write_family(tmp_path, "Fast_dLLM_Qwen")
    (tmp_path / "generation_config.json").write_text(
        '{"pad_token_id": 5, "eos_token_id": [6, 7]}', encoding="utf-8"
    )
    info = open_source(tmp_path).spec.info
    assert (info.mask_token_id, info.pad_token_id) == (MASK, IM_END)
    assert info.stop_token_ids == (6, 7, PAD, IM_END)
    edit_json(tmp_path / "config.json", mask_token_id=3)
    with pytest.raises(CheckpointError, match=r"config\.json says 3, the tokenizer's mask_token"):
        open_source(tmp_path)


@pytest.mark.parametrize("model_type", ["sdar", "Fast_dLLM_Qwen"])
@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', only 'silu'"),
        ({"head_dim": 7}, "head_dim is 7, RoPE needs an even one"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling is"),
        ({"use_sliding_window": True, "sliding_window": 9}, "sliding_window 9 is in use"),
        ({"layer_types": ["sliding_attention"]}, "layer_types has sliding_attention"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple"),
    ],
)
def test_config_fault(tmp_path: Path, model_type: str, changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_source(write_family(tmp_path, model_type, **changes))
    assert any(f"config.json: {fault}" in found for found in caught.value.faults)
