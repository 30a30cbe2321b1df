"""Finds the program in an answer: fenced, after prose, or as the continuation of a prompt."""

from __future__ import annotations

import ast
import re

FENCE = re.compile(r"```[ \t]*(?:[pP]ython3?|py)?[ \t]*\n(.*?)(?:\n```|\Z)", re.DOTALL)
STATEMENT = re.compile(r"(?:def|class|import|from|async|@)")
END_MARKS = ("[DONE]", "<|endoftext|>", "\nif __name__")
LINES_TRIED = 200


def code_of(text: str, entry: str) -> str:
    """The part of an answer that defines `entry`.

    That is the first fenced block that does (else the first), or, without fences, the longest run
    of whole lines from the first statement on that is valid Python.
    """
    for mark in END_MARKS:
        text = text.partition(mark)[0]
    text = text.replace("[BEGIN]", "")
    blocks = FENCE.findall(text)
    if blocks:
        chosen: str = next((block for block in blocks if defines(block, entry)), blocks[0])
        return chosen.rstrip()
    lines = text.strip("\n").split("\n")[:LINES_TRIED]
    start = next((i for i, line in enumerate(lines) if STATEMENT.match(line)), 0)
    for end in range(len(lines), start, -1):
        code = "\n".join(lines[start:end])
        if defines(code, entry) and _parses(code):
            return code.rstrip()
    return "\n".join(lines[start:]).rstrip()


def completed(prompt: str, text: str, entry: str) -> str:
    """The program of an answer to `prompt`, which ends in the head of the function `entry`.

    An answer with the whole function follows what the prompt has before that function; any other
    answer is its body, up to the first line that is not indented.
    """
    if defines(text, entry):
        before = re.split(rf"^def {re.escape(entry)}\b", prompt, maxsplit=1, flags=re.MULTILINE)[0]
        return f"{before}{code_of(text, entry)}"
    fenced = FENCE.findall(text)
    body = (fenced[0] if fenced else text).lstrip("\n")
    if body[:1].strip():  # the indent is lost where a chat template ends in a newline
        body = f"    {body}"
    lines = body.split("\n")
    end = next(
        (i for i, line in enumerate(lines) if line[:1].strip()),
        len(lines),
    )
    return "\n".join([prompt.rstrip("\n"), *lines[:end]]).rstrip()


def defines(code: str, entry: str) -> bool:
    """Whether the text has a function of that name."""
    return re.search(rf"^(?:async )?def {re.escape(entry)}\b", code, re.MULTILINE) is not None


def _parses(code: str) -> bool:
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
