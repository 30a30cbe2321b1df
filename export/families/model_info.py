"""The sizes and traits every family states in the same way, under its own keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runtime.manifest import ModelInfo
from ..token_ids import read_token_ids
from ..tokenizer_files import TokenizerFacts
from .config_reader import ConfigReader
from .family import Family


def read_model_info(
    family: Family,
    reader: ConfigReader,
    generation_config: Mapping[str, Any],
    tokenizer: TokenizerFacts,
    candidates: int,
) -> ModelInfo:
    """Read sizes, token ids and block length; every fault goes to the reader's list."""
    keys, faults = family.keys, reader.faults
    hidden = reader.integer(keys.hidden)
    heads = reader.integer(keys.heads)
    kv_heads = reader.integer(keys.kv_heads)
    vocab_size = reader.integer(keys.vocabulary)
    if reader.config.get(keys.head_dim) is None and heads and hidden % heads:
        reader.fault(f"{keys.hidden} {hidden} is no multiple of {keys.heads} {heads}")
    head_dim = reader.integer(keys.head_dim, max(hidden // (heads or 1), 1))
    if head_dim % 2 and hidden and heads:
        reader.fault(f"{keys.head_dim} is {head_dim}, RoPE needs an even one")
    if kv_heads and heads % kv_heads:
        reader.fault(f"{keys.heads} {heads} is no multiple of {keys.kv_heads} {kv_heads}")
    ids = read_token_ids(
        reader.config,
        generation_config,
        tokenizer,
        vocab_size or tokenizer.size,
        faults,
        mask_rule=family.mask_id,
        pad_rule=family.pad_id,
    )
    if not 0 < candidates < tokenizer.size:
        faults.append(f"candidates is {candidates}, expected 1 to {tokenizer.size - 1}")
    return ModelInfo(
        family=family.name,
        model_type=str(reader.config.get("model_type")),
        layers=reader.integer(keys.layers),
        hidden_size=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=reader.integer(keys.intermediate),
        vocab_size=vocab_size,
        tokenizer_size=tokenizer.size,
        max_positions=reader.integer(keys.positions),
        candidates=candidates,
        mask_token_id=ids.mask,
        pad_token_id=ids.pad,
        stop_token_ids=ids.stop,
        logit_shift=family.logit_shift,
        window_attention=family.window_attention,
        block_size=reader.block_size(family.block_keys, family.block_size),
    )
