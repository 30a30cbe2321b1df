"""GSM8K: {"question", "answer"} where the answer ends in `#### number`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from .latex import last_boxed
from .protocol import Item, RowError, Verdict, text_of

NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?|-?\$?\.\d+")
MARKED = re.compile(r"####\s*(" + NUMBER.pattern + ")")
CALCULATOR = re.compile(r"<<[^>]*>>")  # annotations inside the reference answers
NEXT_QUESTION = "\nQuestion:"


@dataclass(frozen=True)
class Gsm8k:
    """Right if the final number equals the reference."""

    name: str = "gsm8k"
    file: Path | None = None
    instruction: str = (
        "Solve the problem step by step. Write the final number on a last line after '#### '."
    )
    runs_code: bool = False

    def item(self, row: Mapping[str, Any]) -> Item | None:
        """Read a row of the published files."""
        question, answer = text_of(row, "question"), text_of(row, "answer")
        marked = MARKED.search(answer)
        if marked is None:
            raise RowError(f"answer has no '#### number': {answer[-30:]!r}")
        solution = CALCULATOR.sub("", answer)
        number = plain_number(marked[1])
        return Item(None, f"Question: {question}\nAnswer:", solution, {"number": number})

    def grade(self, item: Item, text: str) -> Verdict:
        """Compare the final number as a number: 18, 18.0 and $18 are the same."""
        answer = final_number(text)
        if answer is None:
            return Verdict("", False, "no number")
        return Verdict(answer, Decimal(answer) == Decimal(item.check["number"]))


def final_number(text: str) -> str | None:
    """The number after the first `####`, else the last in the last `\\boxed`, else the last."""
    text = text.partition(NEXT_QUESTION)[0]
    marked = MARKED.search(text)
    if marked is not None:
        return plain_number(marked[1])
    boxed = last_boxed(text)
    for part in (boxed or "", text):
        found = NUMBER.findall(part)
        if found:
            return plain_number(found[-1])
    return None


def plain_number(text: str) -> str:
    """A number without dollar sign and thousands separators; raises RowError."""
    plain = text.replace("$", "").replace(",", "")
    try:
        Decimal(plain)
    except InvalidOperation:
        raise RowError(f"{text!r} is not a number") from None
    return plain
