"""The special token ids of a model, cross-checked between config and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .tokenizer_files import TokenizerFacts


@dataclass(frozen=True)
class TokenIds:
    """Ids every source agrees on; `stop` is sorted and unique."""

    mask: int
    pad: int
    stop: tuple[int, ...]


def read_token_ids(
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    tokenizer: TokenizerFacts,
    vocab_size: int,
    faults: list[str],
) -> TokenIds:
    """Cross-check mask and pad id and gather the stop ids; what is wrong goes to `faults`.

    `config.json` and the tokenizer must both name mask and pad; `generation_config.json` may.
    """
    if tokenizer.size > vocab_size:
        faults.append(
            f"the tokenizer has ids up to {tokenizer.size - 1}, but config.json says vocab_size "
            f"{vocab_size}; use the tokenizer the model was trained with"
        )
    mask, pad = (
        _agreed_id(role, config, generation_config, known, vocab_size, faults)
        for role, known in (
            ("mask_token", tokenizer.mask_token_id),
            ("pad_token", tokenizer.pad_token_id),
        )
    )
    stop = {pad, *tokenizer.eos_token_ids}
    for file, source in (
        ("config.json", config),
        ("generation_config.json", generation_config),
    ):
        stop |= _eos_ids(file, source.get("eos_token_id"), vocab_size, faults)
    if not faults and mask in stop:
        faults.append(f"mask id {mask} is also an eos or pad id; correct config.json")
    return TokenIds(mask, pad, tuple(sorted(stop)))


def _agreed_id(
    role: str,
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    tokenizer_id: int | None,
    vocab_size: int,
    faults: list[str],
) -> int:
    key = f"{role}_id"
    stated = {"config.json": config.get(key), f"the tokenizer's {role}": tokenizer_id}
    if generation_config.get(key) is not None:
        stated["generation_config.json"] = generation_config[key]
    values = list(stated.values())
    if any(value is None or value != values[0] for value in values):
        said = ", ".join(
            f"{source} says {'nothing' if value is None else repr(value)}"
            for source, value in stated.items()
        )
        faults.append(f"{key}: {said}; all must name the same id, correct the wrong file")
        return 0
    return _checked_id(f"config.json: {key}", values[0], vocab_size, faults)


def _eos_ids(file: str, value: Any, vocab_size: int, faults: list[str]) -> set[int]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    return {_checked_id(f"{file}: eos_token_id", one, vocab_size, faults) for one in values}


def _checked_id(where: str, value: Any, vocab_size: int, faults: list[str]) -> int:
    if type(value) is int and 0 <= value < vocab_size:
        return value
    faults.append(f"{where} is {value!r}, expected an id below vocab_size {vocab_size}")
    return 0
