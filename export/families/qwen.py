"""The layout that Qwen2 and Qwen3 bodies share: config keys and tensor names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runtime.manifest import ModelInfo
from ..spec import DecoderSpec
from ..tokenizer_files import TokenizerFacts
from .config_reader import ConfigReader
from .family import Family, Source, SourceTensor
from .model_info import read_model_info

# Canonical name inside a layer -> Hugging Face module.
ATTENTION = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
}
MLP = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
HEAD_NORMS = {"query_norm": "self_attn.q_norm", "key_norm": "self_attn.k_norm"}


def read_qwen2_spec(
    family: Family,
    reader: ConfigReader,
    generation_config: Mapping[str, Any],
    tokenizer: TokenizerFacts,
    candidates: int,
) -> DecoderSpec:
    """Map the config of a Qwen2 body to the decoder: queries, keys and values have a bias."""
    info = read_model_info(family, reader, generation_config, tokenizer, candidates)
    return _read_body(info, reader, qkv_bias=True, output_bias=False, qk_norm=False)


def read_qwen3_spec(
    family: Family,
    reader: ConfigReader,
    generation_config: Mapping[str, Any],
    tokenizer: TokenizerFacts,
    candidates: int,
) -> DecoderSpec:
    """Map the config of a Qwen3 body to the decoder: norms on queries and keys, bias by config."""
    info = read_model_info(family, reader, generation_config, tokenizer, candidates)
    bias = reader.flag("attention_bias", False)
    return _read_body(info, reader, qkv_bias=bias, output_bias=bias, qk_norm=True)


def _read_body(
    info: ModelInfo, reader: ConfigReader, *, qkv_bias: bool, output_bias: bool, qk_norm: bool
) -> DecoderSpec:
    """Read what Qwen2 and Qwen3 state alike."""
    reader.require("hidden_act", ("silu",))
    reader.require("quantization_config", (None,))
    reader.full_attention()
    return DecoderSpec(
        info=info,
        rms_norm_eps=reader.number("rms_norm_eps"),
        rope_theta=reader.rope_theta(),
        qkv_bias=qkv_bias,
        tied_head=reader.flag("tie_word_embeddings", False),
        output_bias=output_bias,
        qk_norm=qk_norm,
    )


def qwen_tensor_names(spec: DecoderSpec) -> dict[str, Source]:
    """Return the checkpoint tensor of every canonical parameter; experts are left to the family."""
    names: dict[str, Source] = {"embed": SourceTensor("model.embed_tokens.weight", False)}
    for layer in range(spec.info.layers):
        prefix, source = f"layers.{layer}", f"model.layers.{layer}"
        for name, module in {**NORMS, **(HEAD_NORMS if spec.qk_norm else {})}.items():
            names[f"{prefix}.{name}"] = SourceTensor(f"{source}.{module}.weight", False)
        for name, module in ATTENTION.items():
            names |= linear(f"{prefix}.{name}", f"{source}.{module}", spec.has_bias(name))
        if not spec.is_sparse(layer):
            names |= dense_mlp(prefix, f"{source}.mlp")
    names["final_norm"] = SourceTensor("model.norm.weight", False)
    if not spec.tied_head:
        names["head"] = SourceTensor("lm_head.weight", True)
    return names


def linear(canonical: str, module: str, bias: bool = False) -> dict[str, Source]:
    """Return weight and bias of a linear layer."""
    names: dict[str, Source] = {f"{canonical}.weight": SourceTensor(f"{module}.weight", True)}
    if bias:
        names[f"{canonical}.bias"] = SourceTensor(f"{module}.bias", False)
    return names


def dense_mlp(canonical: str, module: str) -> dict[str, Source]:
    """Return the three weights of a SwiGLU MLP."""
    names: dict[str, Source] = {}
    for name, part in MLP.items():
        names |= linear(f"{canonical}.{name}", f"{module}.{part}")
    return names
