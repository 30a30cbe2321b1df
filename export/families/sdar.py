"""SDAR: a Qwen3 body (norms on queries and keys) with block-causal attention, unshifted."""

from __future__ import annotations

from ..token_ids import IdRule
from .family import Family
from .qwen import qwen_tensor_names, read_qwen3_spec

FAMILY = Family(
    name="sdar",
    model_types=("sdar",),
    logit_shift=0,
    window_attention="block-causal",
    block_keys=("block_size", "block_length"),
    block_size=None,
    mask_id=IdRule(),
    pad_id=IdRule(),
    spec=read_qwen3_spec,
    tensor_names=qwen_tensor_names,
)
