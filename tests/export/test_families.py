from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lopa.export.checkpoint import CheckpointError
from lopa.export.families import SourceTensor, UnsupportedModelError, family_for
from lopa.export.source import open_source
from lopa.export.spec import parameter_shapes

from .tiny_checkpoint import IM_END, MASK, PAD, TOKENIZER_SIZE, edit_json, write_checkpoint


def test_dream_config_maps_to_the_spec(tmp_path: Path) -> None:
    spec = open_source(write_checkpoint(tmp_path, vocab=300), candidates=5).spec
    info = spec.info
    assert (info.family, info.model_type) == ("dream", "Dream")
    assert (info.layers, info.hidden_size, info.intermediate_size) == (2, 64, 128)
    assert (info.heads, info.kv_heads, info.head_dim) == (4, 2, 16)
    assert (info.vocab_size, info.tokenizer_size) == (300, TOKENIZER_SIZE)
    assert (info.max_positions, info.candidates) == (2048, 5)
    assert (info.mask_token_id, info.pad_token_id) == (MASK, PAD)
    assert info.stop_token_ids == (PAD, IM_END)
    assert (info.logit_shift, info.window_attention, info.block_size) == (1, "full", 32)
    assert (spec.rms_norm_eps, spec.rope_theta) == (1e-6, 10000.0)
    assert (spec.qkv_bias, spec.tied_head) == (True, False)
    assert info.faults() == []


def test_every_canonical_parameter_has_a_source(tmp_path: Path) -> None:
    source = open_source(write_checkpoint(tmp_path))
    names = family_for({"model_type": "Dream"}, tmp_path).tensor_names(source.spec)
    assert names.keys() == parameter_shapes(source.spec).keys()
    gate = SourceTensor("model.layers.1.mlp.gate_proj.weight", True)
    assert names["layers.1.gate.weight"] == gate
    assert names["embed"] == SourceTensor("model.embed_tokens.weight", False)


@pytest.mark.parametrize(("key", "size"), [("block_size", 8), ("block_length", 16)])
def test_block_size_keys(tmp_path: Path, key: str, size: int) -> None:
    changes: dict[str, Any] = {key: size}
    assert open_source(write_checkpoint(tmp_path, **changes)).spec.info.block_size == size


def test_rope_theta_of_newer_configs(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 500.0}
    write_checkpoint(tmp_path, rope_theta=None, rope_parameters=rope)
    assert open_source(tmp_path).spec.rope_theta == 500.0


def test_stop_ids_are_gathered_sorted_and_unique(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, eos_token_id=[7, PAD])
    edit_json(tmp_path / "generation_config.json", eos_token_id=[9, 7])
    assert open_source(tmp_path).spec.info.stop_token_ids == (7, 9, PAD, IM_END)


def test_explicit_head_dim(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_source(write_checkpoint(tmp_path, head_dim=32))
    assert "q_proj.weight is [64, 64], expected [128, 64]" in str(caught.value)


def test_unknown_model_type_names_the_folder_and_lists_the_known() -> None:
    folder = Path("some") / "model"
    with pytest.raises(UnsupportedModelError) as caught:
        family_for({"model_type": "mamba"}, folder)
    assert str(caught.value) == (
        f"{folder / 'config.json'}: unsupported model_type 'mamba'; supported: "
        "Dream, Fast_dLLM_Qwen, llada, llada2_moe, sdar, sdar_moe"
    )
    with pytest.raises(UnsupportedModelError, match="unsupported model_type None"):
        family_for({}, folder)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"hidden_size": None}, "hidden_size is missing, expected a positive integer"),
        ({"vocab_size": "320"}, "vocab_size is '320', expected a positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0, expected a positive integer"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True, expected a positive integer"),
        ({"rms_norm_eps": None}, "rms_norm_eps is missing, expected a positive number"),
        ({"rope_theta": -1}, "rope_theta is -1, expected a positive number"),
        ({"num_attention_heads": 5}, "hidden_size 64 is no multiple of num_attention_heads 5"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value"),
        ({"head_dim": 15}, "head_dim is 15, RoPE needs an even one"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', only 'silu' is supported"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling is {'type': 'yarn'}, only null"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn', only null"),
        ({"use_sliding_window": True, "sliding_window": 64}, "sliding_window 64 is in use"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no', expected true or false"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is {'bits': 4}, only null"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types has sliding_att"),
        ({"block_size": 1.5}, "block_size is 1.5, expected a positive integer"),
    ],
)
def test_config_fault(tmp_path: Path, changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_source(write_checkpoint(tmp_path, **changes))
    (found,) = (text for text in caught.value.faults if fault in text)
    assert found.startswith("config.json: ")


def test_all_config_faults_at_once(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, hidden_size=None, hidden_act="relu", rope_theta="x", vocab_size=0)
    with pytest.raises(CheckpointError) as caught:
        open_source(tmp_path)
    assert [fault.split()[1] for fault in caught.value.faults] == [
        "hidden_size",
        "vocab_size",
        "hidden_act",
        "rope_theta",
    ]


@pytest.mark.parametrize("candidates", [0, TOKENIZER_SIZE])
def test_candidates_out_of_range(tmp_path: Path, candidates: int) -> None:
    with pytest.raises(CheckpointError, match=f"candidates is {candidates}, expected 1 to 293"):
        open_source(write_checkpoint(tmp_path), candidates=candidates)
