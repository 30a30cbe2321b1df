"""SDAR-MoE and LLaDA2: routed experts, fused projections, partial rotary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lopa.export.checkpoint import CheckpointError
from lopa.export.source import open_source
from lopa.export.spec import MoeSpec, parameter_shapes
from safetensors.torch import save_file

from .tiny_checkpoint import MASK, PAD, edit_json, read_tensors, write_adapter
from .tiny_family import EXPERTS, HIDDEN, LAYERS, Shapes, write_family


def test_sdar_moe_config_maps_to_the_spec(tmp_path: Path) -> None:
    spec = open_source(write_family(tmp_path, "sdar_moe")).spec
    info = spec.info
    assert (info.family, info.model_type) == ("sdar-moe", "sdar_moe")
    assert (info.logit_shift, info.window_attention, info.block_size) == (0, "block-causal", 4)
    assert (info.head_dim, info.mask_token_id, info.pad_token_id) == (16, MASK, PAD)
    assert (spec.qk_norm, spec.rotary_dim) == (True, None)
    assert spec.moe == MoeSpec(EXPERTS, 2, 24, dense_layers=frozenset())
    assert [spec.is_sparse(layer) for layer in range(LAYERS)] == [True, True]


def test_llada2_config_maps_to_the_spec(tmp_path: Path) -> None:
    spec = open_source(write_family(tmp_path, "llada2_moe")).spec
    info = spec.info
    assert (info.family, info.model_type) == ("llada2-moe", "llada2_moe")
    assert (info.logit_shift, info.window_attention, info.block_size) == (0, "block-causal", 32)
    assert (info.heads, info.kv_heads, info.head_dim, spec.rotary_dim) == (4, 2, 8, 4)
    assert spec.moe == MoeSpec(
        EXPERTS,
        2,
        24,
        dense_layers=frozenset({0}),
        sigmoid=True,
        normalised=True,
        scaling=2.5,
        groups=4,
        kept_groups=2,
        router_bias=True,
        shared_size=24,
    )
    assert [spec.is_sparse(layer) for layer in range(LAYERS)] == [False, True]


@pytest.mark.parametrize("model_type", ["sdar_moe", "llada2_moe"])
def test_every_parameter_is_read_in_its_shape(tmp_path: Path, model_type: str) -> None:
    source = open_source(write_family(tmp_path, model_type))
    shapes = parameter_shapes(source.spec)
    assert {name: tuple(source.weights.read(name).shape) for name in shapes} == shapes
    used = {part.record.name for weight in source.weights.values() for part in weight.parts}
    assert used == source.checkpoint.tensors.keys()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_experts_lie_side_by_side(tmp_path: Path, dtype: torch.dtype) -> None:
    source = open_source(write_family(tmp_path, "sdar_moe", dtype=torch.bfloat16))
    wide = {
        name: source.weights.read(f"layers.1.experts.{name}.weight", dtype)
        for name in ("gate", "up", "down")
    }
    for index in range(EXPERTS):
        own, module = slice(24 * index, 24 * index + 24), f"model.layers.1.mlp.experts.{index}"
        parts = {"gate": wide["gate"][:, own], "up": wide["up"][:, own], "down": wide["down"][own]}
        for name, part in parts.items():
            assert torch.equal(
                part, source.checkpoint.read(f"{module}.{name}_proj.weight").T.to(dtype)
            )
    router = source.checkpoint.read("model.layers.1.mlp.gate.weight").float()
    assert torch.equal(source.weights.read("layers.1.experts.router"), router.T)


def test_fused_projection_is_split(tmp_path: Path) -> None:
    source = open_source(write_family(tmp_path, "llada2_moe"))
    fused = source.checkpoint.read("model.layers.0.attention.query_key_value.weight")
    parts = {"query": fused[:32], "key": fused[32:48], "value": fused[48:]}
    for name, part in parts.items():
        assert torch.equal(source.weights.read(f"layers.0.{name}.weight"), part.T)


@pytest.mark.parametrize(
    ("canonical", "stored"),
    [
        ("embed", "word_embeddings.weight"),
        ("layers.0.output.weight", "layers.0.attention.dense.weight"),
        ("layers.0.query_norm", "layers.0.attention.query_layernorm.weight"),
        ("layers.1.key_norm", "layers.1.attention.key_layernorm.weight"),
        ("layers.0.up.weight", "layers.0.mlp.up_proj.weight"),
        ("layers.1.experts.router", "layers.1.mlp.gate.weight"),
        ("layers.1.experts.router_bias", "layers.1.mlp.gate.expert_bias"),
        ("layers.1.experts.shared.down.weight", "layers.1.mlp.shared_experts.down_proj.weight"),
    ],
)
def test_llada2_tensors(tmp_path: Path, canonical: str, stored: str) -> None:
    source = open_source(write_family(tmp_path, "llada2_moe"))
    tensor = source.checkpoint.read(f"model.{stored}")
    matrix = tensor.ndim == 2 and canonical != "embed"
    assert torch.equal(source.weights.read(canonical), tensor.T if matrix else tensor)


def test_llada2_switches(tmp_path: Path) -> None:
    """Biases, no head norms, no shared expert, no router bias, whole-head rotary."""
    extra: Shapes = {}
    drop = []
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        extra[f"{prefix}.attention.query_key_value.bias"] = (64,)
        extra[f"{prefix}.attention.dense.bias"] = (HIDDEN,)
        drop += [f"{prefix}.attention.{name}_layernorm.weight" for name in ("query", "key")]
    mlp = "model.layers.1.mlp"
    drop += [f"{mlp}.shared_experts.{name}_proj.weight" for name in ("gate", "up", "down")]
    settings: dict[str, Any] = {
        "use_qkv_bias": True,
        "use_bias": True,
        "use_qk_norm": False,
        "num_shared_experts": None,
        "moe_router_enable_expert_bias": False,
        "partial_rotary_factor": None,
        "rotary_dim": None,
    }
    drop.append(f"{mlp}.gate.expert_bias")
    source = open_source(write_family(tmp_path, "llada2_moe", extra=extra, drop=drop, **settings))
    stored = source.checkpoint.read("model.layers.1.attention.query_key_value.bias")
    assert torch.equal(source.weights.read("layers.1.value.bias"), stored[48:])
    assert source.spec.rotary_dim == 8
    assert source.spec.moe is not None
    assert source.spec.moe.shared_size == 0


@pytest.mark.parametrize(
    ("changes", "sparse"),
    [
        ({"decoder_sparse_step": 2}, [False, True]),
        ({"mlp_only_layers": [1]}, [True, False]),
        ({"decoder_sparse_step": 1, "mlp_only_layers": []}, [True, True]),
    ],
)
def test_dense_layers_of_sdar_moe(
    tmp_path: Path, changes: dict[str, Any], sparse: list[bool]
) -> None:
    dense = [layer for layer, routed in enumerate(sparse) if not routed]
    extra: Shapes = {}
    drop = []
    for layer in dense:
        mlp = f"model.layers.{layer}.mlp"
        extra |= {f"{mlp}.{name}_proj.weight": (48, HIDDEN) for name in ("gate", "up")}
        extra[f"{mlp}.down_proj.weight"] = (HIDDEN, 48)
        names = ("gate", "up", "down")
        drop += [f"{mlp}.experts.{i}.{n}_proj.weight" for i in range(EXPERTS) for n in names]
        drop.append(f"{mlp}.gate.weight")
    source = open_source(write_family(tmp_path, "sdar_moe", extra=extra, drop=drop, **changes))
    assert [source.spec.is_sparse(layer) for layer in range(LAYERS)] == sparse


def test_adapter_of_a_fused_projection_and_one_expert(tmp_path: Path) -> None:
    base = write_family(tmp_path / "base", "llada2_moe")
    adapter = write_adapter(tmp_path / "adapter", base, targets=["query_key_value", "down_proj"])
    source = open_source(base, adapter)
    assert source.adapter is not None

    def merged(name: str) -> torch.Tensor:
        assert source.adapter is not None
        update = source.adapter.updates[name]
        with_files = {}
        for factor in (update.factor_a, update.factor_b):
            with_files[factor.name] = read_tensors(factor.file)[factor.name]
        product = with_files[update.factor_b.name] @ with_files[update.factor_a.name]
        assert (update.scale * product).abs().max() > 1e-3
        return source.checkpoint.read(name) + update.scale * product

    fused = merged("model.layers.1.attention.query_key_value.weight")
    torch.testing.assert_close(source.weights.read("layers.1.key.weight"), fused[32:48].T)
    expert = merged("model.layers.1.mlp.experts.3.down_proj.weight")
    wide = source.weights.read("layers.1.experts.down.weight")
    torch.testing.assert_close(wide[72:96], expert.T)


def test_a_missing_expert_is_named(tmp_path: Path) -> None:
    lost = "model.layers.0.mlp.experts.5.up_proj.weight"
    with pytest.raises(CheckpointError, match=f"missing tensors: {lost};"):
        open_source(write_family(tmp_path, "sdar_moe", drop=[lost]))


def test_a_fused_projection_of_the_wrong_size(tmp_path: Path) -> None:
    wrong: Shapes = {"model.layers.1.attention.query_key_value.weight": (96, HIDDEN)}
    with pytest.raises(CheckpointError, match=r"value.weight is \[96, 32\], expected \[64, 32\]"):
        open_source(write_family(tmp_path, "llada2_moe", extra=wrong))


def test_a_value_that_overflows_names_its_expert(tmp_path: Path) -> None:
    write_family(tmp_path, "sdar_moe")
    tensors = read_tensors(tmp_path / "model.safetensors")
    name = "model.layers.0.mlp.experts.6.gate_proj.weight"
    tensors[name][0, 0] = 1e6
    save_file(tensors, tmp_path / "model.safetensors")
    weights = open_source(tmp_path).weights
    with pytest.raises(
        CheckpointError, match=f"{name} has NaN or infinite values as torch.float16"
    ):
        weights.read("layers.0.experts.gate.weight", torch.float16)


@pytest.mark.parametrize(
    ("model_type", "changes", "fault"),
    [
        ("sdar_moe", {"num_experts": None}, "num_experts is missing, expected a positive integer"),
        ("sdar_moe", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9, more than num_experts"),
        ("sdar_moe", {"mlp_only_layers": "0"}, "mlp_only_layers is '0', expected a list of layer"),
        ("sdar_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step is 0, expected a positive"),
        ("sdar_moe", {"norm_topk_prob": 1}, "norm_topk_prob is 1, expected true or false"),
        ("llada2_moe", {"n_group": 3}, "n_group 3 and topk_group 2 do not fit num_experts 8"),
        ("llada2_moe", {"topk_group": 5}, "n_group 4 and topk_group 5 do not fit"),
        ("llada2_moe", {"num_experts_per_tok": 5}, "num_experts_per_tok is 5, more than 2 of 4"),
        ("llada2_moe", {"rotary_dim": 8}, "rotary_dim is 8, but partial_rotary_factor of head_dim"),
        (
            "llada2_moe",
            {"partial_rotary_factor": 2, "rotary_dim": 16},
            "rotary_dim is 16, expected",
        ),
        (
            "llada2_moe",
            {"score_function": "softmax"},
            "score_function is 'softmax', only",
        ),
        ("llada2_moe", {"norm_topk_prob": False}, "norm_topk_prob is False, only True or null"),
        ("llada2_moe", {"first_k_dense_replace": -1}, "first_k_dense_replace is -1, expected zero"),
        ("llada2_moe", {"use_linear_attention": True}, "use_linear_attention is True"),
        ("llada2_moe", {"routed_scaling_factor": 0}, "routed_scaling_factor is 0, expected"),
    ],
)
def test_config_fault(tmp_path: Path, model_type: str, changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_source(write_family(tmp_path, model_type, **changes))
    assert any(f"config.json: {fault}" in found for found in caught.value.faults)


def test_ids_that_only_one_file_states(tmp_path: Path) -> None:
    write_family(tmp_path, "llada2_moe", mask_token_id=None, pad_token_id=None)
    info = open_source(tmp_path).spec.info
    assert (info.mask_token_id, info.pad_token_id) == (MASK, PAD)
    edit_json(tmp_path / "config.json", pad_token_id=3)
    with pytest.raises(CheckpointError, match=r"config\.json says 3, the tokenizer's pad_token"):
        open_source(tmp_path)
