"""LLaDA: a Llama body under OLMo's names, with full attention and unshifted logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..spec import DecoderSpec
from ..token_ids import CONFIG, IdRule
from ..tokenizer_files import TokenizerFacts
from .config_reader import ConfigReader
from .family import Family, SizeKeys, Source, SourceTensor
from .model_info import read_model_info
from .qwen import linear

# Canonical name inside a layer -> module of a block.
NORMS = {"attention_norm": "attn_norm", "mlp_norm": "ff_norm"}
LINEARS = {
    "query": "q_proj",
    "key": "k_proj",
    "value": "v_proj",
    "output": "attn_out",
    "gate": "ff_proj",
    "up": "up_proj",
    "down": "ff_out",
}

# Switches of the modelling code that change the arithmetic -> the settings lopa has.
REQUIRED: dict[str, tuple[Any, ...]] = {
    "activation_type": ("silu",),
    "block_type": ("llama",),
    "layer_norm_type": ("rms",),
    "block_group_size": (1, None),
    "rope": (True,),
    "alibi": (False, None),
    "attention_layer_norm": (False, None),
    "bias_for_layer_norm": (False, None),
    "layer_norm_with_affine": (True, None),
    "clip_qkv": (None,),
    "input_emb_norm": (False, None),
    "scale_logits": (False, None),
    "quantization_config": (None,),
}


def read_spec(
    family: Family,
    reader: ConfigReader,
    generation_config: Mapping[str, Any],
    tokenizer: TokenizerFacts,
    candidates: int,
) -> DecoderSpec:
    """Map a LLaDA config to the decoder; every fault is noted in the reader."""
    reader = _with_defaults(reader)
    info = read_model_info(family, reader, generation_config, tokenizer, candidates)
    for key, accepted in REQUIRED.items():
        reader.require(key, accepted)
    everywhere = reader.flag("include_bias", False)
    if everywhere and reader.config.get("bias_for_layer_norm") is None:
        reader.fault("include_bias gives the norms a bias too, which is not supported")
    tied = reader.flag(family.keys.tied_head, True)
    return DecoderSpec(
        info=info,
        rms_norm_eps=reader.number("rms_norm_eps", 1e-5),
        rope_theta=reader.rope_theta(),
        qkv_bias=reader.flag("include_qkv_bias", False) or everywhere,
        tied_head=tied,
        output_bias=everywhere,
        mlp_bias=everywhere,
        head_bias=everywhere and not tied,
    )


def _with_defaults(reader: ConfigReader) -> ConfigReader:
    """Fill in the sizes that follow from others when the config leaves them out."""
    full = dict(reader.config)
    if full.get("n_kv_heads") is None:
        multi_query = reader.flag("multi_query_attention", False)
        full["n_kv_heads"] = 1 if multi_query else full.get("n_heads")
    if full.get("mlp_hidden_size") is None and type(full.get("d_model")) is int:
        full["mlp_hidden_size"] = reader.integer("mlp_ratio", 4) * full["d_model"]
    if full.get("embedding_size") is None:  # rows of embedding and head
        full["embedding_size"] = full.get("vocab_size")
    return ConfigReader(full, reader.faults)


def tensor_names(spec: DecoderSpec) -> dict[str, Source]:
    """Return the checkpoint tensor of every canonical parameter."""
    root = "model.transformer"
    names: dict[str, Source] = {"embed": SourceTensor(f"{root}.wte.weight", False)}
    for layer in range(spec.info.layers):
        prefix, source = f"layers.{layer}", f"{root}.blocks.{layer}"
        for name, module in NORMS.items():
            names[f"{prefix}.{name}"] = SourceTensor(f"{source}.{module}.weight", False)
        for name, module in LINEARS.items():
            names |= linear(f"{prefix}.{name}", f"{source}.{module}", spec.has_bias(name))
    names["final_norm"] = SourceTensor(f"{root}.ln_f.weight", False)
    if not spec.tied_head:
        names["head"] = SourceTensor(f"{root}.ff_out.weight", True)
    if spec.head_bias:
        names["head_bias"] = SourceTensor(f"{root}.ff_out.bias", False)
    return names


FAMILY = Family(
    name="llada",
    model_types=("llada",),
    logit_shift=0,
    window_attention="full",
    block_keys=("block_size", "block_length"),
    block_size=32,
    mask_id=IdRule(required=(CONFIG,)),  # published tokenizers give it no role
    pad_id=IdRule(),
    spec=read_spec,
    tensor_names=tensor_names,
    keys=SizeKeys(
        hidden="d_model",
        heads="n_heads",
        kv_heads="n_kv_heads",
        layers="n_layers",
        intermediate="mlp_hidden_size",
        vocabulary="embedding_size",
        positions="max_sequence_length",
        tied_head="weight_tying",
    ),
)
