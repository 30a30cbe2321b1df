"""Writes the demo checkpoint folder and the held-out problem files from a training state."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from ...runtime.staging import staged_folder
from .model import DreamNetwork, Shape, load_network
from .objective import BLOCK
from .problem import Problem, write_problems
from .problems import TASKS, generate
from .tokenizer import save_tokenizer, write_json

CONTEXT = 4096
HELD_OUT_SEED = 2024
HELD_OUT_COUNT = 25


def model_config(shape: Shape, tokenizer: Tokenizer) -> dict[str, Any]:
    """config.json in the layout of the public Dream checkpoints."""
    end = tokenizer.token_to_id("<|endoftext|>")
    return {
        "architectures": ["DreamModel"],
        "attention_dropout": 0.0,
        "auto_map": {
            "AutoConfig": "configuration_dream.DreamConfig",
            "AutoModel": "modeling_dream.DreamModel",
        },
        "block_size": BLOCK,
        "bos_token_id": end,
        "eos_token_id": end,
        "full_attn_mask": True,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": shape.initializer_range,
        "intermediate_size": shape.intermediate_size,
        "mask_token_id": tokenizer.token_to_id("<|mask|>"),
        "max_position_embeddings": CONTEXT,
        "max_window_layers": shape.num_hidden_layers,
        "model_type": "Dream",
        "num_attention_heads": shape.num_attention_heads,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_key_value_heads": shape.num_key_value_heads,
        "pad_token_id": end,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "transformers_version": "4.46.2",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocab_size,
    }


def head_without_undefined_rows(net: DreamNetwork, tokenizer: Tokenizer) -> None:
    """Zeroes the head rows of the mask token and beyond the tokenizer, as Dream-like files have."""
    with torch.no_grad():
        net.lm_head.weight[tokenizer.get_vocab_size() :] = 0.0
        net.lm_head.weight[tokenizer.token_to_id("<|mask|>")] = 0.0


def write_checkpoint(net: DreamNetwork, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes the folder; what it held before goes when all files are there."""
    config = model_config(net.shape, tokenizer)
    ids = {name: config[name] for name in config if name.endswith("_token_id")}
    generation = {"_from_model_config": True, "transformers_version": "4.46.2", **ids}
    tensors = {name: tensor.contiguous() for name, tensor in net.state_dict().items()}
    with staged_folder(folder, force=True) as stage:
        save_tokenizer(tokenizer, stage)
        write_json(stage / "config.json", config)
        write_json(stage / "generation_config.json", generation)
        save_file(tensors, stage / "model.safetensors", metadata={"format": "pt"})
        (stage / "model.safetensors").chmod(0o644)


def held_out_problems(count: int, seed: int) -> list[Problem]:
    """`count` held-out problems per task, task by task."""
    return [problem for task in TASKS for problem in generate(task, seed, count, held_out=True)]


def main() -> None:
    """Publishes the averaged weights of a training state as a Dream checkpoint."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--state", type=Path, help="state.pt of a training run")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json")
    parser.add_argument("--out", type=Path, required=True, help="folder tools/demo")
    parser.add_argument("--problems", action="store_true", help="also write the .jsonl files")
    options = parser.parse_args()
    if options.state:
        tokenizer = Tokenizer.from_file(str(options.tokenizer))
        net = load_network(options.state)
        head_without_undefined_rows(net, tokenizer)
        write_checkpoint(net, tokenizer, options.out / "checkpoint")
    if options.problems:
        write_problems(
            options.out / "heldout.jsonl", held_out_problems(HELD_OUT_COUNT, HELD_OUT_SEED)
        )
        write_problems(options.out / "samples.jsonl", held_out_problems(1, HELD_OUT_SEED + 1))


if __name__ == "__main__":
    main()
