"""SDAR: a Qwen3 body (norms on queries and keys) with block-causal attention, unshifted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..spec import DecoderSpec
from ..token_ids import IdRule
from ..tokenizer_files import TokenizerFacts
from .config_reader import ConfigReader
from .family import Family
from .qwen import qwen_tensor_names, read_qwen_spec


def read_spec(
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    tokenizer: TokenizerFacts,
    candidates: int,
    faults: list[str],
) -> DecoderSpec:
    """Map an SDAR config to the decoder; every fault is appended to `faults`."""
    reader = ConfigReader(config, faults)
    bias = reader.flag("attention_bias", False)
    return read_qwen_spec(
        FAMILY,
        reader,
        generation_config,
        tokenizer,
        candidates,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
    )


FAMILY = Family(
    name="sdar",
    model_types=("sdar",),
    logit_shift=0,
    window_attention="block-causal",
    block_keys=("block_size", "block_length"),
    block_size=None,
    mask_id=IdRule(),
    pad_id=IdRule(),
    spec=read_spec,
    tensor_names=qwen_tensor_names,
)
