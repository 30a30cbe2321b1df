"""Prompts of the command line: one text, or a file with one JSON object per line."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from ..runtime.bounded_file import read_bounded_lines
from ..runtime.contract import LopaError
from ..runtime.strict_json import parse_json
from .arguments import positive

STDIN = "-"
LISTED_FAULTS = 8
MAX_PROMPT_BYTES = 1 << 20  # of text; what fits a context is far below
LINE_FACTOR = 8  # a line of JSON has so many times the bytes of its prompt, at most
MAX_FILE_BYTES = 1 << 30


def add_prompt_limit(parser: argparse.ArgumentParser) -> None:
    """Add --max-prompt-bytes."""
    parser.add_argument(
        "--max-prompt-bytes",
        metavar="N",
        type=positive,
        default=MAX_PROMPT_BYTES,
        help=f"longest prompt that is read (default {MAX_PROMPT_BYTES})",
    )


@dataclass(frozen=True)
class Prompt:
    """One prompt, as text or as token ids, and where it came from (for messages)."""

    id: Any
    text: str | None
    ids: tuple[int, ...] | None
    where: str = ""


class PromptLineError(LopaError):
    """Prompts that cannot be decoded, each named with its file and line."""

    def __init__(self, faults: Sequence[str]) -> None:
        more = len(faults) - LISTED_FAULTS
        listed = [*faults[:LISTED_FAULTS], *([f"and {more} more"] if more > 0 else [])]
        super().__init__("; ".join(listed))


def single_prompt(text: str, limit: int = MAX_PROMPT_BYTES) -> Prompt:
    """The prompt given as a flag, of at most `limit` bytes; ``-`` reads standard input."""
    if text != STDIN:
        return _limited(Prompt(1, text, None), limit)
    with _opened(STDIN) as stream:
        data = stream.read(limit + 2)
    return _limited(Prompt(1, _text(data, STDIN).removesuffix("\n"), None, "<stdin>"), limit)


def read_prompts(file: str, limit: int = MAX_PROMPT_BYTES) -> list[Prompt]:
    """Read lines ``{"id": ..., "prompt": text}`` or ``{"id": ..., "prompt_ids": [...]}``.

    Without an id the line number serves; other keys are ignored. Raises PromptLineError with every
    bad line, and at the first line that is too long for a prompt of `limit` bytes.
    """
    name = "<stdin>" if file == STDIN else file
    prompts, faults = [], []
    with _opened(file) as stream:
        data = read_bounded_lines(stream, name, LINE_FACTOR * limit, MAX_FILE_BYTES)
    text = _text(data, file)
    for number, line in enumerate(text.split("\n"), 1):  # splitlines knows ten more ends
        if not line.strip():
            continue
        try:
            prompts.append(_limited(_prompt(line, number, f"{name}:{number}"), limit))
        except LopaError as error:
            faults.append(str(error))
    if faults:
        raise PromptLineError(faults)
    if not prompts:
        raise LopaError(f'{name} has no prompts, expected lines like {{"id": 1, "prompt": "..."}}')
    return prompts


def check_prompts(
    prompts: Sequence[Prompt], encode: Callable[[Prompt], list[int]]
) -> list[list[int]]:
    """Encode all prompts before the first is decoded; raises PromptLineError with every fault."""
    encoded, faults = [], []
    for prompt in prompts:
        try:
            encoded.append(encode(prompt))
        except LopaError as error:
            faults.append(f"{prompt.where}: {error}" if prompt.where else str(error))
    if faults:
        raise PromptLineError(faults)
    return encoded


def _prompt(line: str, number: int, where: str) -> Prompt:
    try:
        data = parse_json(line)
    except LopaError as error:
        raise LopaError(f"{where}: {error}") from None
    if not isinstance(data, dict):
        raise LopaError(f"{where}: {type(data).__name__}, expected an object")
    text, ids = data.get("prompt"), data.get("prompt_ids")
    if (text is None) == (ids is None):
        found = f"found {', '.join(data)}" if data else "found neither"
        raise LopaError(f"{where}: expected either prompt or prompt_ids, {found}")
    if text is not None and not isinstance(text, str):
        raise LopaError(f"{where}: prompt is {type(text).__name__}, expected text")
    if ids is not None and not (isinstance(ids, list) and all(type(item) is int for item in ids)):
        raise LopaError(f"{where}: prompt_ids is not a list of integers")
    try:
        json.dumps(data.get("id"), ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise LopaError(f"{where}: the id is not valid Unicode text") from None
    return Prompt(data.get("id", number), text, None if ids is None else tuple(ids), where)


def _limited(prompt: Prompt, limit: int) -> Prompt:
    """The prompt; raises LopaError before it is tokenized if its text has too many bytes."""
    size = 0 if prompt.text is None else len(prompt.text.encode("utf-8", "surrogatepass"))
    if size <= limit:
        return prompt
    where = f"{prompt.where}: " if prompt.where else ""
    raise LopaError(
        f"{where}the prompt has more than {limit} bytes; shorten it or raise --max-prompt-bytes"
    )


@contextlib.contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    if file == STDIN:
        if sys.stdin is None:
            raise LopaError("cannot read prompts: standard input is closed")
        yield sys.stdin.buffer
        return
    try:
        with open(file, "rb") as stream:
            yield stream
    except OSError as error:
        raise LopaError(f"cannot read prompts from {file}: {error.strerror}") from None


def _text(data: bytes, file: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LopaError(f"{file} is not UTF-8 text (byte {error.start})") from None
