"""Fast-dLLM v2: a Qwen2.5 body with block-causal attention whose logits are shifted by one."""

from __future__ import annotations

from ..token_ids import CONFIG, IdRule
from .family import Family
from .qwen import qwen_tensor_names, read_qwen2_spec

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
    spec=read_qwen2_spec,
    tensor_names=qwen_tensor_names,
)
