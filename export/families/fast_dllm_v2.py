"""Fast-dLLM v2: a Qwen2.5 body with block-causal attention whose logits are shifted by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..spec import DecoderSpec
from ..token_ids import CONFIG, IdRule
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
    """Map a Fast-dLLM v2 config to the decoder; every fault is appended to `faults`."""
    reader = ConfigReader(config, faults)
    return read_qwen_spec(FAMILY, reader, generation_config, tokenizer, candidates, qkv_bias=True)


FAMILY = Family(
    name="fast-dllm-v2",
    model_types=("Fast_dLLM_Qwen",),
    logit_shift=1,
    window_attention="block-causal",
    block_keys=("bd_size", "block_size", "block_length"),
    block_size=32,
    mask_id=IdRule(),  # the published config leaves it out, the tokenizer names it
    # config.json pads with the end of a turn, the other files with the end of a text.
    pad_id=IdRule(deciding=CONFIG),
    spec=read_spec,
    tensor_names=qwen_tensor_names,
)
