"""Dream and DiffuCoder: a Qwen2 body with full attention whose logits are shifted by one."""

from __future__ import annotations

from ..token_ids import CONFIG, TOKENIZER, IdRule
from .family import Family
from .qwen import qwen_tensor_names, read_qwen2_spec

FAMILY = Family(
    name="dream",
    model_types=("Dream",),
    logit_shift=1,
    window_attention="full",
    block_keys=("block_size", "block_length"),
    block_size=32,
    mask_id=IdRule(required=(CONFIG, TOKENIZER)),
    pad_id=IdRule(required=(CONFIG, TOKENIZER)),
    spec=read_qwen2_spec,
    tensor_names=qwen_tensor_names,
)
