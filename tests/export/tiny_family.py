"""Small random checkpoints of every family but Dream, in the layouts of the published ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from .tiny_checkpoint import IM_END, MASK, PAD, write_tensors, write_tokenizer

HIDDEN, VOCAB, LAYERS, EXPERTS = 32, 320, 2, 8
Shapes = dict[str, tuple[int, ...]]

_QWEN: dict[str, Any] = {
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": VOCAB,
    "eos_token_id": IM_END,
}
_MOE = {"moe_intermediate_size": 24, "num_experts": EXPERTS, "num_experts_per_tok": 2}

CONFIGS: dict[str, dict[str, Any]] = {
    "llada": {
        "activation_type": "silu",
        "block_type": "llama",
        "d_model": HIDDEN,
        "embedding_size": VOCAB,
        "eos_token_id": PAD,
        "include_bias": False,
        "include_qkv_bias": False,
        "layer_norm_type": "rms",
        "mask_token_id": MASK,
        "max_sequence_length": 256,
        "mlp_hidden_size": 48,
        "n_heads": 4,
        "n_kv_heads": 2,
        "n_layers": LAYERS,
        "rms_norm_eps": 1e-5,
        "rope": True,
        "rope_theta": 500000.0,
        "vocab_size": VOCAB,
        "weight_tying": False,
    },
    "sdar": {**_QWEN, "block_size": 4, "head_dim": 16, "mask_token_id": MASK},
    "sdar_moe": {
        **_QWEN,
        **_MOE,
        "block_size": 4,
        "head_dim": 16,
        "mask_token_id": MASK,
        "norm_topk_prob": True,
    },
    "Fast_dLLM_Qwen": {**_QWEN, "bd_size": 32, "pad_token_id": IM_END},
    "llada2_moe": {
        **_QWEN,
        **_MOE,
        "eos_token_id": PAD,
        "first_k_dense_replace": 1,
        "head_dim": 8,
        "mask_token_id": MASK,
        "n_group": 4,
        "norm_topk_prob": True,
        "num_shared_experts": 1,
        "pad_token_id": PAD,
        "partial_rotary_factor": 0.5,
        "rotary_dim": 4,
        "routed_scaling_factor": 2.5,
        "score_function": "sigmoid",
        "topk_group": 2,
        "use_qk_norm": True,
    },
}


def write_family(
    folder: Path,
    model_type: str,
    *,
    seed: int = 0,
    extra: Shapes | None = None,
    drop: Iterable[str] = (),
    dtype: torch.dtype = torch.float32,
    **config_overrides: Any,
) -> Path:
    """Write a checkpoint; an override of None removes the key, `drop` and `extra` change tensors.

    The tensors are those of the unchanged config.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": model_type, **CONFIGS[model_type], **config_overrides}
    kept = {key: value for key, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept), encoding="utf-8")
    write_tokenizer(folder)
    dropped = set(drop)
    shapes = stored_shapes(model_type) | (extra or {})
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: 1 + 0.1 * torch.randn(shape, generator=generator)
        if "norm" in name or name.endswith("ln_f.weight")
        else torch.randn(shape, generator=generator) * 0.2
        for name, shape in shapes.items()
        if name not in dropped
    }
    write_tensors(folder, {name: tensor.to(dtype) for name, tensor in tensors.items()})
    return folder


def stored_shapes(model_type: str) -> Shapes:
    """Names and shapes of the tensors in the file."""
    if model_type == "llada":
        return _llada()
    shapes: Shapes = {"model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCAB, HIDDEN)}
    fused = model_type == "llada2_moe"
    shapes[f"model.{'word_embeddings' if fused else 'embed_tokens'}.weight"] = (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}.{norm}.weight"] = (HIDDEN,)
        shapes |= _fused(f"{prefix}.attention") if fused else _split(prefix, model_type)
        if model_type == "sdar_moe" or (fused and layer):
            shapes |= _experts(f"{prefix}.mlp", shared=fused)
        else:
            shapes |= _mlp(f"{prefix}.mlp", 48)
    return shapes


def _llada() -> Shapes:
    root = "model.transformer"
    shapes: Shapes = {
        f"{root}.wte.weight": (VOCAB, HIDDEN),
        f"{root}.ln_f.weight": (HIDDEN,),
        f"{root}.ff_out.weight": (VOCAB, HIDDEN),
    }
    for layer in range(LAYERS):
        block = f"{root}.blocks.{layer}"
        sizes = {"q_proj": HIDDEN, "k_proj": 16, "v_proj": 16, "attn_out": HIDDEN}
        for name, width in {**sizes, "ff_proj": 48, "up_proj": 48}.items():
            shapes[f"{block}.{name}.weight"] = (width, HIDDEN)
        shapes[f"{block}.ff_out.weight"] = (HIDDEN, 48)
        for name in ("attn_norm", "ff_norm"):
            shapes[f"{block}.{name}.weight"] = (HIDDEN,)
    return shapes


def _split(prefix: str, model_type: str) -> Shapes:
    head = 8 if model_type == "Fast_dLLM_Qwen" else 16
    shapes: Shapes = {f"{prefix}.self_attn.o_proj.weight": (HIDDEN, 4 * head)}
    for name, heads in (("q", 4), ("k", 2), ("v", 2)):
        shapes[f"{prefix}.self_attn.{name}_proj.weight"] = (heads * head, HIDDEN)
        if model_type == "Fast_dLLM_Qwen":
            shapes[f"{prefix}.self_attn.{name}_proj.bias"] = (heads * head,)
        elif name != "v":
            shapes[f"{prefix}.self_attn.{name}_norm.weight"] = (head,)
    return shapes


def _fused(module: str) -> Shapes:
    return {
        f"{module}.query_key_value.weight": ((4 + 2 + 2) * 8, HIDDEN),
        f"{module}.query_layernorm.weight": (8,),
        f"{module}.key_layernorm.weight": (8,),
        f"{module}.dense.weight": (HIDDEN, 32),
    }


def _mlp(module: str, wide: int) -> Shapes:
    return {
        f"{module}.gate_proj.weight": (wide, HIDDEN),
        f"{module}.up_proj.weight": (wide, HIDDEN),
        f"{module}.down_proj.weight": (HIDDEN, wide),
    }


def _experts(module: str, shared: bool) -> Shapes:
    shapes: Shapes = {f"{module}.gate.weight": (EXPERTS, HIDDEN)}
    for index in range(EXPERTS):
        shapes |= _mlp(f"{module}.experts.{index}", 24)
    if shared:
        shapes |= {f"{module}.gate.expert_bias": (EXPERTS,)}
        shapes |= _mlp(f"{module}.shared_experts", 24)
    return shapes
