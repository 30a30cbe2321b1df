from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from lopa.runtime.contract import LopaError
from lopa.tools.prompt_lines import Prompt, read_prompts


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "p.jsonl"


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\x0b", "\x1e"])
def test_only_a_newline_ends_a_line(path: Path, end: str) -> None:
    text = f"one{end}two"
    row = json.dumps({"id": 1, "prompt": text}, ensure_ascii=False)
    path.write_bytes(f"{row}\r\n{row}\n".encode())
    if end < " ":
        row = row.replace(f"\\u{ord(end):04x}", end)
    assert read_prompts(str(path)) == [Prompt(1, text, None, f"{path}:{line}") for line in (1, 2)]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("[" * 100_000, "not valid JSON (nested too deeply)"),
        ('{"prompt_ids": [' + "1" * 5000 + "]}", "not valid JSON (a number of 5000 digits)"),
        ('{"id": NaN, "prompt": "x"}', "not valid JSON (NaN is no JSON value)"),
        ('{"id": "\\ud800", "prompt": "x"}', "the id is not valid Unicode text"),
        ('{"id": 3}', "expected either prompt or prompt_ids, found id"),
        ("{}", "expected either prompt or prompt_ids, found neither"),
    ],
)
def test_a_bad_line_is_named(path: Path, line: str, fault: str) -> None:
    path.write_text(line, encoding="utf-8")
    with pytest.raises(LopaError) as caught:
        read_prompts(str(path))
    assert str(caught.value) == f"{path}:1: {fault}"


def test_closed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(LopaError, match="cannot read prompts: standard input is closed"):
        read_prompts("-")
