"""Dream and DiffuCoder: a Qwen2 body with full attention whose logits are shifted by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runtime.manifest import ModelInfo
from ..spec import DecoderSpec
from ..token_ids import read_token_ids
from ..tokenizer_files import TokenizerFacts
from .family import ConfigReader, Family, SourceTensor

DEFAULT_BLOCK_SIZE = 32

# Canonical name inside a layer -> Hugging Face module.
LINEARS = {
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}


def read_spec(
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    tokenizer: TokenizerFacts,
    candidates: int,
    faults: list[str],
) -> DecoderSpec:
    """Map a Dream config to the decoder; every fault is appended to `faults`."""
    reader = ConfigReader(config, faults)
    hidden = reader.integer("hidden_size")
    heads = reader.integer("num_attention_heads")
    kv_heads = reader.integer("num_key_value_heads")
    vocab_size = reader.integer("vocab_size")
    if config.get("head_dim") is None and heads and hidden % heads:
        reader.fault(f"hidden_size {hidden} is no multiple of num_attention_heads {heads}")
    head_dim = reader.integer("head_dim", max(hidden // (heads or 1), 1))
    if head_dim % 2 and hidden and heads:
        reader.fault(f"head_dim is {head_dim}, RoPE needs an even one")
    if kv_heads and heads % kv_heads:
        reader.fault(
            f"num_attention_heads {heads} is no multiple of num_key_value_heads {kv_heads}"
        )
    reader.require("hidden_act", ("silu",))
    reader.require("quantization_config", (None,))
    if reader.flag("use_sliding_window", False) and config.get("sliding_window") is not None:
        reader.fault(f"sliding_window {config['sliding_window']!r} is in use, expected none")
    ids = read_token_ids(config, generation_config, tokenizer, vocab_size or tokenizer.size, faults)
    if not 0 < candidates < tokenizer.size:
        faults.append(f"candidates is {candidates}, expected 1 to {tokenizer.size - 1}")
    block_key = "block_length" if config.get("block_size") is None else "block_size"
    return DecoderSpec(
        info=ModelInfo(
            family=FAMILY.name,
            model_type=str(config.get("model_type")),
            layers=reader.integer("num_hidden_layers"),
            hidden_size=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate_size=reader.integer("intermediate_size"),
            vocab_size=vocab_size,
            tokenizer_size=tokenizer.size,
            max_positions=reader.integer("max_position_embeddings"),
            candidates=candidates,
            mask_token_id=ids.mask,
            pad_token_id=ids.pad,
            stop_token_ids=ids.stop,
            logit_shift=1,
            window_attention="full",
            block_size=reader.integer(block_key, DEFAULT_BLOCK_SIZE),
        ),
        rms_norm_eps=reader.number("rms_norm_eps"),
        rope_theta=reader.rope_theta(),
        qkv_bias=True,
        tied_head=reader.flag("tie_word_embeddings", False),
    )


def tensor_names(spec: DecoderSpec) -> dict[str, SourceTensor]:
    """Return the checkpoint tensor of every canonical parameter."""
    names = {"embed": SourceTensor("model.embed_tokens.weight", False)}
    for layer in range(spec.info.layers):
        source = f"model.layers.{layer}"
        for name, module in NORMS.items():
            names[f"layers.{layer}.{name}"] = SourceTensor(f"{source}.{module}.weight", False)
        for name, module in LINEARS.items():
            canonical = f"layers.{layer}.{name}"
            names[f"{canonical}.weight"] = SourceTensor(f"{source}.{module}.weight", True)
            if spec.qkv_bias and name in ("query", "key", "value"):
                names[f"{canonical}.bias"] = SourceTensor(f"{source}.{module}.bias", False)
    names["final_norm"] = SourceTensor("model.norm.weight", False)
    if not spec.tied_head:
        names["head"] = SourceTensor("lm_head.weight", True)
    return names


FAMILY = Family("dream", ("Dream",), read_spec, tensor_names)
