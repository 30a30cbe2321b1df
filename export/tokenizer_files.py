"""Reads a checkpoint's tokenizer files and writes the ones an exported model needs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from ..runtime.manifest import TOKENIZER_FILES
from .checkpoint import CheckpointError, collect, read_json

TOKENIZER_FILE, *COPIED_FILES = TOKENIZER_FILES
CONFIG_FILE, SPECIAL_FILE, TEMPLATE_FILE = COPIED_FILES
VOCAB_FILE, MERGES_FILE, ADDED_FILE = "vocab.json", "merges.txt", "added_tokens.json"

END_OF_TURN = "<|im_end|>"

# How Qwen2 tokenizers (and Dream's, which ship without tokenizer.json) split text before BPE.
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class TokenizerError(CheckpointError):
    """Tokenizer files that are missing, damaged or contradict each other."""


@dataclass(frozen=True)
class TokenizerFacts:
    """What the export must know about the tokenizer; `size` is its highest id plus one."""

    size: int
    mask_token_id: int | None
    pad_token_id: int | None
    eos_token_ids: tuple[int, ...]  # the eos token and, where it exists, <|im_end|>
    files: tuple[str, ...]
    has_chat_template: bool


def read_tokenizer(folder: Path) -> TokenizerFacts:
    """Read the tokenizer of `folder`; raises TokenizerError listing every fault."""
    tokenizer, _ = _load(folder)
    faults: list[str] = []
    config = read_json(folder / CONFIG_FILE, optional=True)
    special = collect(faults, lambda: read_json(folder / SPECIAL_FILE, optional=True)) or {}
    ids = {
        role: _special_id(role, tokenizer, config, special, faults)
        for role in ("mask_token", "pad_token", "eos_token")
    }
    if faults:
        raise TokenizerError(folder, faults)
    ends = {ids["eos_token"], tokenizer.token_to_id(END_OF_TURN)}
    known = (TOKENIZER_FILE, VOCAB_FILE, MERGES_FILE, ADDED_FILE, *COPIED_FILES)
    return TokenizerFacts(
        size=max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1,
        mask_token_id=ids["mask_token"],
        pad_token_id=ids["pad_token"],
        eos_token_ids=tuple(sorted(end for end in ends if end is not None)),
        files=tuple(name for name in known if (folder / name).is_file()),
        has_chat_template=bool(config.get("chat_template")) or (folder / TEMPLATE_FILE).is_file(),
    )


def copy_tokenizer(checkpoint_folder: Path, out_folder: Path) -> list[str]:
    """Write the tokenizer files into `out_folder` and return their names.

    `tokenizer.json` is copied byte for byte when it is complete, else written from vocabulary,
    merges and added tokens.
    """
    tokenizer, complete = _load(checkpoint_folder)
    if complete:
        shutil.copyfile(checkpoint_folder / TOKENIZER_FILE, out_folder / TOKENIZER_FILE)
    else:
        tokenizer.save(str(out_folder / TOKENIZER_FILE))
    names = [name for name in COPIED_FILES if (checkpoint_folder / name).is_file()]
    for name in names:
        shutil.copyfile(checkpoint_folder / name, out_folder / name)
    return [TOKENIZER_FILE, *names]


def _load(folder: Path) -> tuple[Tokenizer, bool]:
    """Return the tokenizer and whether `tokenizer.json` alone describes it."""
    config = read_json(folder / CONFIG_FILE, optional=True)
    complete = (folder / TOKENIZER_FILE).is_file()
    try:
        if complete:
            tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        elif (folder / VOCAB_FILE).is_file() and (folder / MERGES_FILE).is_file():
            tokenizer = _byte_level_bpe(folder)
        else:
            raise TokenizerError(
                folder,
                [
                    f"no {TOKENIZER_FILE} (nor {VOCAB_FILE} with {MERGES_FILE}), expected the "
                    "tokenizer beside the weights; convert other formats with "
                    "transformers.AutoTokenizer.from_pretrained(..., use_fast=True)"
                    ".save_pretrained(...)"
                ],
            )
    except CheckpointError:
        raise
    except Exception as error:  # tokenizers raises plain Exception for malformed files
        name = TOKENIZER_FILE if complete else f"{VOCAB_FILE} or {MERGES_FILE}"
        raise TokenizerError(folder, [f"{name} is damaged ({error}), download it again"]) from None
    before = tokenizer.get_vocab_size(with_added_tokens=True)
    faults: list[str] = []
    for expected, token in _declared_tokens(folder, config, faults):
        if tokenizer.token_to_id(token.content) is None or not complete:
            tokenizer.add_tokens([token])
        found = tokenizer.token_to_id(token.content)
        if found != expected:
            faults.append(
                f"added token {token.content!r} has id {found} in the tokenizer, "
                f"{CONFIG_FILE} or {ADDED_FILE} says {expected}; make them agree"
            )
    if faults:
        raise TokenizerError(folder, faults)
    return tokenizer, complete and before == tokenizer.get_vocab_size(with_added_tokens=True)


def _byte_level_bpe(folder: Path) -> Tokenizer:
    """Build what Qwen2's slow tokenizer does from `vocab.json` and `merges.txt`."""
    tokenizer = Tokenizer(BPE.from_file(str(folder / VOCAB_FILE), str(folder / MERGES_FILE)))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _declared_tokens(
    folder: Path, config: Mapping[str, Any], faults: list[str]
) -> Iterator[tuple[int, AddedToken]]:
    """Yield ids and added tokens of `tokenizer_config.json`, else of `added_tokens.json`."""
    declared = config.get("added_tokens_decoder")
    if declared is None:
        added = read_json(folder / ADDED_FILE, optional=True)
        declared = {str(index): {"content": content} for content, index in added.items()}
    try:
        tokens = sorted((int(index), dict(token)) for index, token in declared.items())
        yield from (
            (
                index,
                AddedToken(
                    token["content"],
                    single_word=token.get("single_word", False),
                    lstrip=token.get("lstrip", False),
                    rstrip=token.get("rstrip", False),
                    normalized=token.get("normalized", False),
                    special=token.get("special", True),
                ),
            )
            for index, token in tokens
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        faults.append(
            f"{CONFIG_FILE}: added_tokens_decoder is malformed, expected id -> token with content"
        )


def _special_id(
    role: str,
    tokenizer: Tokenizer,
    config: Mapping[str, Any],
    special: Mapping[str, Any],
    faults: list[str],
) -> int | None:
    """Return the id of a special token both files agree on; None if neither names one."""
    named = {
        file: token["content"] if isinstance(token, dict) and "content" in token else token
        for file, token in ((CONFIG_FILE, config.get(role)), (SPECIAL_FILE, special.get(role)))
        if token is not None
    }
    if not named:
        return None
    said = " and ".join(f"{file} says {token!r}" for file, token in named.items())
    content = next(iter(named.values()))
    if any(token != content for token in named.values()):
        faults.append(f"{role}: {said}; make them agree")
        return None
    index = tokenizer.token_to_id(content) if isinstance(content, str) else None
    if index is None:
        faults.append(f"{role}: {said}, which is no token of the tokenizer; add or correct it")
    return index
