"""LLaDA2: a Ling body (fused projections, partial rotary, grouped sigmoid router), block-causal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..spec import DecoderSpec, MoeSpec
from ..token_ids import IdRule
from ..tokenizer_files import TokenizerFacts
from .config_reader import ConfigReader
from .family import Family, Source, SourceTensor
from .model_info import read_model_info
from .moe import expert_names
from .qwen import NORMS, dense_mlp, linear

HEAD_NORMS = {"query_norm": "attention.query_layernorm", "key_norm": "attention.key_layernorm"}

# Switches that change the arithmetic -> the settings lopa has.
REQUIRED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "score_function": ("sigmoid", None),
    "norm_topk_prob": (True, None),
    "norm_head": (False, None),
    "norm_softmax": (False, None),
    "use_rmsnorm": (True, None),
    "use_linear_attention": (False, None),
    "quantization_config": (None,),
}


def read_spec(
    family: Family,
    reader: ConfigReader,
    generation_config: Mapping[str, Any],
    tokenizer: TokenizerFacts,
    candidates: int,
) -> DecoderSpec:
    """Map a LLaDA2 config to the decoder; every fault is noted in the reader."""
    info = read_model_info(family, reader, generation_config, tokenizer, candidates)
    for key, accepted in REQUIRED.items():
        reader.require(key, accepted)
    reader.full_attention()
    return DecoderSpec(
        info=info,
        rms_norm_eps=reader.number("rms_norm_eps"),
        rope_theta=reader.rope_theta(),
        qkv_bias=reader.flag("use_qkv_bias", False),
        tied_head=reader.flag("tie_word_embeddings", False),
        output_bias=reader.flag("use_bias", False),
        qk_norm=reader.flag("use_qk_norm", True),
        rotary_dim=_rotary_dim(reader, info.head_dim),
        moe=_read_moe(reader),
    )


def _rotary_dim(reader: ConfigReader, head_dim: int) -> int:
    """Return the part of a head that RoPE turns; both keys that state it must agree."""
    size = int(head_dim * reader.number("partial_rotary_factor", 1.0))
    stated = reader.integer("rotary_dim", size or 1)
    if stated != size:
        reader.fault(
            f"rotary_dim is {stated}, but partial_rotary_factor of head_dim {head_dim} is {size}"
        )
    elif size % 2 or not 0 < size <= head_dim:
        reader.fault(f"rotary_dim is {size}, expected an even number up to head_dim {head_dim}")
    return size


def _read_moe(reader: ConfigReader) -> MoeSpec:
    experts = reader.integer("num_experts")
    per_token = reader.integer("num_experts_per_tok")
    groups, kept = reader.integer("n_group", 1), reader.integer("topk_group", 1)
    if experts and groups and (experts % groups or kept > groups):
        reader.fault(
            f"n_group {groups} and topk_group {kept} do not fit num_experts {experts}: groups must "
            "be of one size, and no more kept than there are"
        )
    elif groups and per_token > experts // groups * kept:
        reader.fault(
            f"num_experts_per_tok is {per_token}, more than {kept} of {groups} groups have of "
            f"{experts} experts"
        )
    size = reader.integer("moe_intermediate_size")
    return MoeSpec(
        experts=experts,
        per_token=per_token,
        expert_size=size,
        dense_layers=frozenset(range(reader.count("first_k_dense_replace", 0))),
        sigmoid=True,
        normalised=per_token > 1,
        scaling=reader.number("routed_scaling_factor", 1.0),
        groups=groups,
        kept_groups=kept,
        router_bias=reader.flag("moe_router_enable_expert_bias", True),
        shared_size=size * reader.count("num_shared_experts", 0),
    )


def tensor_names(spec: DecoderSpec) -> dict[str, Source]:
    """Return the checkpoint tensors of every canonical parameter."""
    info = spec.info
    names: dict[str, Source] = {"embed": SourceTensor("model.word_embeddings.weight", False)}
    for layer in range(info.layers):
        prefix, source = f"layers.{layer}", f"model.layers.{layer}"
        for name, module in {**NORMS, **(HEAD_NORMS if spec.qk_norm else {})}.items():
            names[f"{prefix}.{name}"] = SourceTensor(f"{source}.{module}.weight", False)
        names |= _fused(spec, prefix, f"{source}.attention.query_key_value")
        names |= linear(f"{prefix}.output", f"{source}.attention.dense", spec.output_bias)
        if spec.moe is not None and spec.is_sparse(layer):
            names |= expert_names(
                f"{prefix}.experts",
                f"{source}.mlp",
                spec.moe,
                bias="gate.expert_bias",
                shared="shared_experts",
            )
        else:
            names |= dense_mlp(prefix, f"{source}.mlp")
    names["final_norm"] = SourceTensor("model.norm.weight", False)
    if not spec.tied_head:
        names["head"] = SourceTensor("lm_head.weight", True)
    return names


def _fused(spec: DecoderSpec, prefix: str, module: str) -> dict[str, Source]:
    """Return queries, keys and values: consecutive rows of one stored projection."""
    names: dict[str, Source] = {}
    info, start = spec.info, 0
    for name, heads in (("query", info.heads), ("key", info.kv_heads), ("value", info.kv_heads)):
        rows = (start, start + heads * info.head_dim)
        names[f"{prefix}.{name}.weight"] = SourceTensor(f"{module}.weight", True, rows)
        if spec.qkv_bias:
            names[f"{prefix}.{name}.bias"] = SourceTensor(f"{module}.bias", False, rows)
        start = rows[1]
    return names


FAMILY = Family(
    name="llada2-moe",
    model_types=("llada2_moe",),
    logit_shift=0,
    window_attention="block-causal",
    block_keys=("block_size", "block_length"),
    block_size=32,
    mask_id=IdRule(),
    pad_id=IdRule(),
    spec=read_spec,
    tensor_names=tensor_names,
)
