"""Trains the byte-level BPE tokenizer of the demo checkpoint."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from .problems import TASKS, generate

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|beginoftext|>",
    "<|mask|>",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LONGEST_TEXT = 4096


def chat_text(prompt: str) -> str:
    """The chat template applied to one user message, with the generation prompt."""
    return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A tokenizer of at most `vocab_size` tokens, special tokens last.

    Digits and newlines stand alone while the merges are learnt, so no merge contains one and the
    saved tokenizer keeps them single under the plain byte-level splitting rule.
    """
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split("\n", "isolated"),
            byte_level,
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained.train_from_iterator(texts, trainer)
    trained.pre_tokenizer = byte_level
    trained.decoder = decoders.ByteLevel()
    trained.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL_TOKENS])
    return trained


def training_texts(count: int, seed: int) -> list[str]:
    """Prompts and answers of `count` training problems per task, and the words of the template."""
    texts = ["user", "assistant"] * count
    for task in (*TASKS, "drills"):
        for problem in generate(task, seed, count):
            texts += [problem.prompt, problem.answer]
    return texts


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes tokenizer.json, tokenizer_config.json and special_tokens_map.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {
        "bos_token": "<|beginoftext|>",
        "eos_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "pad_token": "<|endoftext|>",
    }
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    added = {
        str(tokenizer.token_to_id(text)): {"content": text, **flags, "special": True}
        for text in SPECIAL_TOKENS
    }
    settings = {
        "added_tokens_decoder": added,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "extra_special_tokens": {},
        "model_max_length": LONGEST_TEXT,
        "tokenizer_class": "PreTrainedTokenizer",
        **names,
    }
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "special_tokens_map.json", names)


def write_json(path: Path, value: object) -> None:
    """Writes indented JSON with sorted keys and a final newline."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def main() -> None:
    """Trains on generated text and writes the tokenizer files."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, default=696)
    parser.add_argument("--problems", type=int, default=4000, help="per task")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    texts = training_texts(options.problems, options.seed)
    save_tokenizer(train_tokenizer(texts, options.vocab_size), options.out)


if __name__ == "__main__":
    main()
