"""The log of a run: one JSON line per decoded problem, readable up to the last complete line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TextIO

from ...runtime.contract import LopaError

FILE = "samples.jsonl"


@dataclass(frozen=True)
class Sample:
    """One decode: what was asked, what came, whether it is right, what it cost."""

    task: str  # label of the task set
    id: str
    variant: Any  # value of the swept setting, None without a sweep
    prompt: str
    text: str  # decoded text up to the first stop token
    answer: str  # what was taken from it
    correct: bool
    detail: str  # why it is not correct, where the task can tell
    prompt_tokens: int
    tokens: int
    useful_tokens: int
    steps: int
    forwards: int
    rows: int
    seconds: float
    limited: bool

    @property
    def key(self) -> tuple[str, str, Any]:
        """What makes it the only one of its kind in a run."""
        return self.task, self.id, self.variant


class SampleLog:
    """Appends samples to a file and keeps those that are in it."""

    def __init__(self, path: Path | None, samples: Sequence[Sample] = ()) -> None:
        self.samples = list(samples)
        self._file: TextIO | None = None
        if path is not None:
            self._file = path.open("a", encoding="utf-8")

    def add(self, sample: Sample) -> None:
        """Write one line, at once."""
        self.samples.append(sample)
        if self._file is not None:
            self._file.write(json.dumps(asdict(sample), ensure_ascii=False) + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def resume_samples(path: Path) -> list[Sample]:
    """Read a log and cut off the line that a killed run left incomplete.

    Raises LopaError when a complete line is damaged.
    """
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
    names = {field.name for field in fields(Sample)}
    samples = []
    for number, line in enumerate(data[:whole].split(b"\n")[:-1], 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or row.keys() != names:
            raise LopaError(f"{path}:{number}: not a sample of this version; start a new folder")
        samples.append(Sample(**row))
    return samples
