"""Write a random Dream-architecture checkpoint of any size: speed is not judged on a toy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ...runtime.contract import LopaError
from ..demo.model import Shape
from ..demo.publish import model_config
from ..demo.tokenizer import SPECIAL_TOKENS, save_tokenizer, write_json


@dataclass(frozen=True)
class RandomSpec:
    """Sizes of a random model; head size 64, one kv head per four heads unless given."""

    hidden: int
    layers: int
    vocab: int
    heads: int
    kv_heads: int
    intermediate: int

    @property
    def parameters(self) -> int:
        """Number of weights."""
        kv = self.kv_heads * self.head_dim
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * kv
        layer = attention + 3 * self.hidden * self.intermediate
        return 2 * self.vocab * self.hidden + self.layers * layer

    @property
    def head_dim(self) -> int:
        """Size of one attention head."""
        return self.hidden // self.heads


def parse_spec(text: str) -> RandomSpec:
    """Parse ``d768,l12,v32k[,h12][,kv3][,i3072]``; raises LopaError."""
    values: dict[str, int] = {}
    for part in text.split(","):
        match = re.fullmatch(r"(d|l|v|h|kv|i)(\d+)(k?)", part.strip())
        if match is None:
            raise LopaError(
                f"random model {text!r}: {part!r} is not a size, expected for example d768,l12,v32k"
            )
        values[match[1]] = int(match[2]) * (1024 if match[3] else 1)
    missing = [key for key in ("d", "l", "v") if key not in values]
    if missing:
        raise LopaError(f"random model {text!r}: no {', '.join(missing)}; expected d, l and v")
    hidden = values["d"]
    heads = values.get("h", max(1, hidden // 64))
    spec = RandomSpec(
        hidden=hidden,
        layers=values["l"],
        vocab=values["v"],
        heads=heads,
        kv_heads=values.get("kv", max(1, heads // 4)),
        intermediate=values.get("i", 4 * hidden),
    )
    if hidden % heads or heads % spec.kv_heads or spec.head_dim % 2 or spec.vocab < 512:
        raise LopaError(
            f"random model {text!r}: heads {heads} must divide {hidden} into even sizes, kv heads "
            f"{spec.kv_heads} must divide heads, and the vocabulary must have 512 ids or more"
        )
    return spec


def write_random_checkpoint(folder: Path, spec: RandomSpec, seed: int = 0) -> Path:
    """Write a checkpoint whose predictions are confident enough to fill several tokens a step."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        scale: float = gain * columns**-0.5
        return torch.randn(rows, columns, generator=generator) * scale

    hidden, kv = spec.hidden, spec.kv_heads * spec.head_dim
    tensors = {"model.embed_tokens.weight": matrix(spec.vocab, hidden, hidden**0.5)}
    for layer in range(spec.layers):
        prefix = f"model.layers.{layer}"
        for name, rows in (("q", hidden), ("k", kv), ("v", kv)):
            tensors[f"{prefix}.self_attn.{name}_proj.weight"] = matrix(rows, hidden)
            tensors[f"{prefix}.self_attn.{name}_proj.bias"] = torch.zeros(rows)
        tensors[f"{prefix}.self_attn.o_proj.weight"] = matrix(hidden, hidden)
        tensors[f"{prefix}.mlp.gate_proj.weight"] = matrix(spec.intermediate, hidden)
        tensors[f"{prefix}.mlp.up_proj.weight"] = matrix(spec.intermediate, hidden)
        tensors[f"{prefix}.mlp.down_proj.weight"] = matrix(hidden, spec.intermediate)
        tensors[f"{prefix}.input_layernorm.weight"] = torch.ones(hidden)
        tensors[f"{prefix}.post_attention_layernorm.weight"] = torch.ones(hidden)
    tensors["model.norm.weight"] = torch.ones(hidden)
    tensors["lm_head.weight"] = matrix(spec.vocab, hidden, 3.5)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = _tokenizer(spec.vocab)
    save_tokenizer(tokenizer, folder)
    shape = Shape(
        vocab_size=spec.vocab,
        hidden_size=hidden,
        intermediate_size=spec.intermediate,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        rope_theta=1e6,
    )
    config = model_config(shape, tokenizer)
    del config["block_size"]  # of the demo model; the family has its own
    write_json(folder / "config.json", config)
    return folder


def _tokenizer(vocab: int) -> Tokenizer:
    """A byte-level tokenizer padded with filler tokens to the whole vocabulary."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = letters + [f"w{index}" for index in range(vocab - len(letters) - len(SPECIAL_TOKENS))]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer
