"""Writes small random Dream checkpoints and LoRA adapters in the Hugging Face layout."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

BASE_TOKENS = 290  # bytes and merges; the special tokens follow
PAD, IM_START, IM_END, MASK = range(BASE_TOKENS, BASE_TOKENS + 4)
TOKENIZER_SIZE = BASE_TOKENS + 4
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_checkpoint(
    folder: Path,
    *,
    seed: int = 0,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate: int = 128,
    vocab: int = 320,
    tied: bool = False,
    dtype: str = "float32",
    shards: int = 1,
    **config_overrides: Any,
) -> Path:
    """Write a Dream-layout folder; an override of None removes the key from config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = {"mask_token_id": MASK, "pad_token_id": PAD, "eos_token_id": PAD, "bos_token_id": PAD}
    config = {
        "model_type": "Dream",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "max_position_embeddings": 2048,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": tied,
        "vocab_size": vocab,
        **ids,
        **config_overrides,
    }
    _write_json(folder / "config.json", {k: v for k, v in config.items() if v is not None})
    _write_json(folder / "generation_config.json", ids)
    write_tokenizer(folder)
    tensors = _tensors(seed, layers, hidden, heads, kv_heads, intermediate, vocab)
    if tied:
        del tensors["lm_head.weight"]
    stored = {name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}
    write_tensors(folder, stored, shards)
    return folder


def write_tensors(folder: Path, tensors: Mapping[str, torch.Tensor], shards: int = 1) -> None:
    """Write model.safetensors, or the given number of shards with their index."""
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    if shards == 1:
        save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for index in range(shards):
        file = f"model-{index + 1:05d}-of-{shards:05d}.safetensors"
        names = sorted(contiguous)[index::shards]
        save_file({name: contiguous[name] for name in names}, folder / file)
        weight_map.update(dict.fromkeys(names, file))
    _write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})


def write_adapter(
    folder: Path,
    checkpoint: Path,
    *,
    seed: int = 1,
    rank: int = 4,
    alpha: float = 8,
    targets: Sequence[str] = TARGETS,
    saved: Sequence[str] = (),
    prefix: str = "base_model.model.",
    **config_overrides: Any,
) -> Path:
    """Write a PEFT LoRA folder for `checkpoint`; `saved` modules are stored in full.

    A `rank_pattern` override gives modules whose name ends with a key their own rank.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    ranks = config_overrides.get("rank_pattern") or {}
    tensors = {}
    for name, shape in _shapes(checkpoint).items():
        module = name.removesuffix(".weight")
        last = module.rpartition(".")[2]
        if last in targets and len(shape) == 2:
            own = next((r for key, r in ranks.items() if module.endswith(key)), rank)
            factors = {"A": (own, shape[1]), "B": (shape[0], own)}
            for factor, size in factors.items():
                value = torch.randn(size, generator=generator) * 0.1
                tensors[f"{prefix}{module}.lora_{factor}.weight"] = value
        elif last in saved:
            tensors[f"{prefix}{name}"] = torch.randn(shape, generator=generator) * 0.1
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "base_model_name_or_path": "tiny",
        "bias": "none",
        "fan_in_fan_out": False,
        "lora_alpha": alpha,
        "modules_to_save": list(saved) or None,
        "peft_type": "LORA",
        "r": rank,
        "target_modules": list(targets),
        "use_dora": False,
        "use_rslora": False,
    }
    _write_json(folder / "adapter_config.json", config | config_overrides)
    return folder


def write_tokenizer(folder: Path) -> None:
    """Write a byte-level BPE tokenizer with Qwen2's text splitting and Dream's special tokens."""
    Tokenizer.from_str(_tokenizer_json()).save(str(folder / "tokenizer.json"))
    roles = {"eos_token": PAD, "pad_token": PAD, "mask_token": MASK}
    special = {role: SPECIAL_TOKENS[index - PAD] for role, index in roles.items()}
    added = {
        str(PAD + index): {
            "content": content,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for index, content in enumerate(SPECIAL_TOKENS)
    }
    config = {"added_tokens_decoder": added, "chat_template": CHAT_TEMPLATE, **special}
    _write_json(folder / "tokenizer_config.json", config)
    _write_json(folder / "special_tokens_map.json", special)


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None removes the key."""
    data = json.loads(path.read_text(encoding="utf-8")) | changes
    _write_json(path, {key: value for key, value in data.items() if value is not None})


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read all tensors of a safetensors file."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


@functools.cache
def _tokenizer_json() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BASE_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    text = "the answer is there; then the other one or another, and so on and on\n"
    words = " ".join(f"{first}{second}" for first in "abcdefg" for second in "nopqrst")
    tokenizer.train_from_iterator([text, words] * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIAL_TOKENS])
    assert tokenizer.token_to_id("<|mask|>") == MASK
    return tokenizer.to_str()


def _tensors(
    seed: int, layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, vocab: int
) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    kv = hidden // heads * kv_heads
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocab, hidden),
    }
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}.{norm}.weight"] = (hidden,)
        for name, width in (("q", hidden), ("k", kv), ("v", kv)):
            shapes[f"{prefix}.self_attn.{name}_proj.weight"] = (width, hidden)
            shapes[f"{prefix}.self_attn.{name}_proj.bias"] = (width,)
        shapes[f"{prefix}.self_attn.o_proj.weight"] = (hidden, hidden)
        for name in ("gate", "up"):
            shapes[f"{prefix}.mlp.{name}_proj.weight"] = (intermediate, hidden)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (hidden, intermediate)
    # Norms around one, matrices large enough that predictions are far from ties.
    return {
        name: 1 + 0.1 * torch.randn(shape, generator=generator)
        if name.endswith("norm.weight")
        else torch.randn(shape, generator=generator) * 0.2
        for name, shape in shapes.items()
    }


def _shapes(checkpoint: Path) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(checkpoint.glob("model*.safetensors")):
        shapes |= {name: tuple(tensor.shape) for name, tensor in read_tensors(path).items()}
    if "model.embed_tokens.weight" in shapes:
        shapes.setdefault("lm_head.weight", shapes["model.embed_tokens.weight"])
    return shapes


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2), encoding="utf-8")
