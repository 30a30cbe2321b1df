"""SDAR-MoE: a Qwen3-MoE body (softmax router, no shared expert), block-causal, unshifted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..spec import DecoderSpec, MoeSpec
from ..token_ids import IdRule
from ..tokenizer_files import TokenizerFacts
from .config_reader import ConfigReader
from .family import Family, Source
from .moe import expert_names
from .qwen import qwen_tensor_names, read_qwen3_spec


def read_spec(
    family: Family,
    reader: ConfigReader,
    generation_config: Mapping[str, Any],
    tokenizer: TokenizerFacts,
    candidates: int,
) -> DecoderSpec:
    """Map an SDAR-MoE config to the decoder; every fault is noted in the reader."""
    spec = read_qwen3_spec(family, reader, generation_config, tokenizer, candidates)
    experts = reader.integer("num_experts")
    per_token = reader.integer("num_experts_per_tok")
    if experts and per_token > experts:
        reader.fault(f"num_experts_per_tok is {per_token}, more than num_experts {experts}")
    period = reader.integer("decoder_sparse_step", 1)
    dense = set(reader.integers("mlp_only_layers"))
    if period:
        dense |= {layer for layer in range(spec.info.layers) if (layer + 1) % period}
    return replace(
        spec,
        moe=MoeSpec(
            experts=experts,
            per_token=per_token,
            expert_size=reader.integer("moe_intermediate_size"),
            dense_layers=frozenset(dense),
            normalised=reader.flag("norm_topk_prob", False),
        ),
    )


def tensor_names(spec: DecoderSpec) -> dict[str, Source]:
    """Return the checkpoint tensors of every canonical parameter."""
    names = qwen_tensor_names(spec)
    for layer in range(spec.info.layers):
        if spec.moe is not None and spec.is_sparse(layer):
            module = f"model.layers.{layer}.mlp"
            names |= expert_names(f"layers.{layer}.experts", module, spec.moe)
    return names


FAMILY = Family(
    name="sdar-moe",
    model_types=("sdar_moe",),
    logit_shift=0,
    window_attention="block-causal",
    block_keys=("block_size", "block_length"),
    block_size=None,
    mask_id=IdRule(),
    pad_id=IdRule(),
    spec=read_spec,
    tensor_names=tensor_names,
)
