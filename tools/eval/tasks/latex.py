"""Answers in LaTeX: the last boxed expression, and a spelling to compare by."""

from __future__ import annotations

import re

BOXED = re.compile(r"\\(?:boxed|fbox)\s*")
# In this order: spelling while spaces still end a command, then spacing, then units.
SPELLED = (
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(le|ge|ne)(?![a-zA-Z])"), r"\\\1q"),
    (re.compile(r"\^\{?\\circ\}?"), ""),
)
DROPPED = re.compile(
    r"\\(?:left|right|displaystyle|limits|quad|qquad)(?![a-zA-Z])|\\[,;:! $]|[\s~$]|\\?%"
)
TEXT_PARTS = (
    (re.compile(r"\\(?:text|mbox|mathrm|textbf|mathbf)\{([^{}]*)\}(?:\^\{?\d\}?)?$"), r"@\1"),
    (re.compile(r"\\(?:text|mbox|mathrm|textbf|mathbf)\{([^{}]*)\}"), r"\1"),
)
BARE_FRACTION = re.compile(r"\\frac(\d|[a-zA-Z](?![a-zA-Z])|\{[^{}]*\})(\d|[a-zA-Z]|\{[^{}]*\})")
BARE_ROOT = re.compile(r"\\sqrt(\d|[a-zA-Z])")
SLASHED = re.compile(r"(-?)(\d+)/(\d+)")
NAMED = re.compile(r"[a-zA-Z]{1,2}=(?=.)|[a-zA-Z]\\in(?![a-zA-Z])")
THOUSANDS = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
DECIMAL = re.compile(r"(-?)0*(\d*)\.(\d*?)0*")


def last_boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` (or `\boxed x`) holds, braces matched; None if there is none."""
    found = list(BOXED.finditer(text))
    if not found:
        return None
    rest = text[found[-1].end() :]
    if not rest.startswith("{"):
        return rest.split("$")[0].split("\n")[0].strip()
    depth = 0
    for index, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:index].strip()
    return None


def normal_form(answer: str) -> str:
    """One spelling for equal answers: spaces, sizes, units, fractions, roots, separators.

    Strings are compared, nothing is computed: 1/2 and 0.5 stay different.
    """
    for pattern, spelling in SPELLED:
        answer = pattern.sub(spelling, answer)
    text = DROPPED.sub("", answer).rstrip(".")
    for pattern, kept in TEXT_PARTS:
        text = pattern.sub(kept, text)
    value, _, unit = text.rpartition("@")
    text = value or unit  # a text alone is the answer, a text behind a value is its unit
    text = NAMED.sub("", text, count=1) if NAMED.match(text) else text
    if THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    text = BARE_ROOT.sub(r"\\sqrt{\1}", text)
    text = BARE_FRACTION.sub(lambda found: rf"\frac{_braced(found[1])}{_braced(found[2])}", text)
    slashed = SLASHED.fullmatch(text)
    if slashed:
        text = rf"{slashed[1]}\frac{{{slashed[2]}}}{{{slashed[3]}}}"
    decimal = DECIMAL.fullmatch(text)
    if decimal and (decimal[2] or decimal[3]):
        text = f"{decimal[1]}{decimal[2] or '0'}" + (f".{decimal[3]}" if decimal[3] else "")
    return text


def _braced(part: str) -> str:
    return part if part.startswith("{") else f"{{{part}}}"
