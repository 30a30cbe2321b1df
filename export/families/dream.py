"""Dream and DiffuCoder: a Qwen2 body with full attention whose logits are shifted by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..spec import DecoderSpec
from ..token_ids import CONFIG, TOKENIZER, IdRule
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
    """Map a Dream config to the decoder; every fault is appended to `faults`."""
    reader = ConfigReader(config, faults)
    return read_qwen_spec(FAMILY, reader, generation_config, tokenizer, candidates, qkv_bias=True)


FAMILY = Family(
    name="dream",
    model_types=("Dream",),
    logit_shift=1,
    window_attention="full",
    block_keys=("block_size", "block_length"),
    block_size=32,
    mask_id=IdRule(required=(CONFIG, TOKENIZER)),
    pad_id=IdRule(required=(CONFIG, TOKENIZER)),
    spec=read_spec,
    tensor_names=qwen_tensor_names,
)
