"""The record every demo problem is kept in, and the split between training and held-out prompts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HELD_OUT_SHARE = 16


@dataclass(frozen=True)
class Problem:
    """One prompt with a reference answer; `check` holds whatever else the task's grader needs."""

    task: str
    prompt: str
    answer: str
    check: Mapping[str, Any]

    @property
    def id(self) -> str:
        """Task name and the first hexadecimal digits of the prompt's hash."""
        return f"{self.task}-{prompt_hash(self.prompt)[:10]}"

    def to_json(self) -> str:
        """One JSON line with keys id, task, prompt, answer, check."""
        fields = {
            "id": self.id,
            "task": self.task,
            "prompt": self.prompt,
            "answer": self.answer,
            "check": dict(self.check),
        }
        return json.dumps(fields)

    @staticmethod
    def from_json(line: str) -> Problem:
        """The inverse of `to_json`; raises KeyError when a field is missing."""
        row = json.loads(line)
        return Problem(row["task"], row["prompt"], row["answer"], row["check"])


def prompt_hash(prompt: str) -> str:
    """SHA-256 of the prompt, as 64 hexadecimal digits."""
    return hashlib.sha256(prompt.encode()).hexdigest()


def is_held_out(prompt: str) -> bool:
    """True for the 1/16 of all prompts that training never sees."""
    return int(prompt_hash(prompt)[-8:], 16) % HELD_OUT_SHARE == 0


def write_problems(path: Path, problems: Iterable[Problem]) -> None:
    """Writes one problem a line."""
    path.write_text("".join(problem.to_json() + "\n" for problem in problems))


def read_problems(path: Path) -> Iterator[Problem]:
    """Yields the problems of a JSON-lines file."""
    for line in path.read_text().splitlines():
        if line.strip():
            yield Problem.from_json(line)
