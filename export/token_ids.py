"""The special token ids of a model, cross-checked between config and tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .tokenizer_files import TokenizerFacts

# The files that may state an id.
CONFIG, TOKENIZER, GENERATION = "config.json", "the tokenizer", "generation_config.json"


@dataclass(frozen=True)
class IdRule:
    """Which files state a special token id: the `required` ones must, any other may.

    Without required files one of the three must. All that state an id must agree, unless published
    checkpoints contradict themselves: then the `deciding` file's id is taken.
    """

    required: tuple[str, ...] = ()
    deciding: str | None = None


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
    *,
    mask_rule: IdRule,
    pad_rule: IdRule,
) -> TokenIds:
    """Cross-check mask and pad id and gather the stop ids; what is wrong goes to `faults`."""
    if tokenizer.size > vocab_size:
        faults.append(
            f"the tokenizer has ids up to {tokenizer.size - 1}, but config.json says vocab_size "
            f"{vocab_size}; use the tokenizer the model was trained with"
        )
    mask, pad = (
        _agreed_id(
            role,
            {
                CONFIG: config.get(f"{role}_id"),
                TOKENIZER: known,
                GENERATION: generation_config.get(f"{role}_id"),
            },
            rule,
            vocab_size,
            faults,
        )
        for role, known, rule in (
            ("mask_token", tokenizer.mask_token_id, mask_rule),
            ("pad_token", tokenizer.pad_token_id, pad_rule),
        )
    )
    stop = {pad, *tokenizer.eos_token_ids}
    for file, source in ((CONFIG, config), (GENERATION, generation_config)):
        stop |= _eos_ids(file, source.get("eos_token_id"), vocab_size, faults)
    if not faults and mask in stop:
        faults.append(f"mask id {mask} is also an eos or pad id; correct config.json")
    return TokenIds(mask, pad, tuple(sorted(stop)))


def _agreed_id(
    role: str, stated: Mapping[str, Any], rule: IdRule, vocab_size: int, faults: list[str]
) -> int:
    said = {file: value for file, value in stated.items() if value is not None}
    values = [said[rule.deciding]] if rule.deciding in said else list(said.values())
    silent = [file for file in rule.required if file not in said]
    if silent or not values or any(value != values[0] for value in values):
        faults.append(f"{role}_id: {_statements(role, stated, rule, said)}")
        return 0
    file = next(file for file, value in said.items() if value == values[0])
    return _checked_id(f"{file}: {role}_id", values[0], vocab_size, faults)


def _statements(role: str, stated: Mapping[str, Any], rule: IdRule, said: Mapping[str, Any]) -> str:
    """Say what every file that counts states, and what to do."""
    names = {file: file for file in stated} | {TOKENIZER: f"{TOKENIZER}'s {role}"}
    counted = said.keys() | set(rule.required) if said else stated.keys()
    text = ", ".join(
        f"{name} says {repr(said[file]) if file in said else 'nothing'}"
        for file, name in names.items()
        if file in counted
    )
    if not said:
        return f"{text}; one must name it, add it to config.json"
    return f"{text}; all must name the same id, correct the wrong file"


def _eos_ids(file: str, value: Any, vocab_size: int, faults: list[str]) -> set[int]:
    values = value if isinstance(value, list) else [] if value is None else [value]
    return {_checked_id(f"{file}: eos_token_id", one, vocab_size, faults) for one in values}


def _checked_id(where: str, value: Any, vocab_size: int, faults: list[str]) -> int:
    if type(value) is int and 0 <= value < vocab_size:
        return value
    faults.append(f"{where} is {value!r}, expected an id below vocab_size {vocab_size}")
    return 0
