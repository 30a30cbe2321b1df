"""Commands that write, and what must be true of their output when they are stopped half-way."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .drill import Outcome, Worker

VARYING = {"seconds", "started", "finished", "tokens_per_second", "speed_up", "folder"}
ROWS = tuple({"input": f"{n},2,3,36", "output": "1+1=2"} for n in range(4, 8))
FEW = ("--samples", 4, "--decodes", 4, "--max-new-tokens", 8, "--context", 64, "--sensitivity", 1)
DECODES = ("--max-new-tokens", 8, "--raw", "--threads", 1)


@dataclass(frozen=True)
class Writer:
    """A command that writes the folder `out` in `room`."""

    name: str
    arguments: Callable[[Path], list[object]]  # from the room; `out` is in it
    resumes: bool  # with --resume it goes on in `out`

    def again(self, room: Path) -> list[object]:
        """The command that a user gives after one that was stopped."""
        arguments = self.arguments(room)
        if self.resumes:
            return [*arguments, "--resume"]
        return [*arguments, "--force"] if (room / "out").exists() else arguments


def writers(checkpoint: Path, model: Path, bundle: Path, inputs: Path) -> dict[str, Writer]:
    """The commands by name; `inputs` is a folder for their prompts and problems."""
    inputs.mkdir()
    problems, prompts = inputs / "cd.jsonl", inputs / "prompts.jsonl"
    problems.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    lines = [json.dumps({"prompt": f"the answer is {number}"}) for number in range(4)]
    prompts.write_text("\n".join(lines), encoding="utf-8")
    task = (bundle, "--task", f"countdown={problems}", *DECODES)
    search = ("--search", "lookahead=0,2", "--search", "confidence=0.5,0.9")
    calibrate = (model, "--prompts", prompts, *FEW, "--recipe", "int8")
    found = [
        Writer("export", lambda room: ["export", checkpoint, "-o", room / "out"], False),
        Writer("build", lambda room: ["build", model, "-o", room / "out"], False),
        Writer("calibrate", lambda room: ["calibrate", *calibrate, "-o", room / "out"], False),
        Writer("eval", lambda room: ["eval", *task, "-o", room / "out"], True),
        Writer("tune", lambda room: ["tune", *task, *search, "-o", room / "out"], True),
    ]
    return {writer.name: writer for writer in found}


class Interruption:
    """Runs of one command that are stopped, checked and repeated."""

    def __init__(self, worker: Worker, writer: Writer, room: Path) -> None:
        self.name, self.room = writer.name, room
        self._worker, self._writer = worker, writer
        room.mkdir()
        whole = self.run(writer.arguments(room))
        assert whole.status == 0, whole.err
        self.seconds, self.expected = whole.seconds, contents(room / "out")
        sizes = [path.stat().st_size for path in _files(room)]
        self.largest, self.total = max(sizes), sum(sizes)
        self.clear()

    def run(self, arguments: list[object], **limits: float) -> Outcome:
        """Run a command line in the room, killed or limited."""
        return self._worker.send({"arguments": [str(item) for item in arguments], **limits})

    def stop(self, **limits: float) -> Outcome:
        """Run the command, limited, on an empty room."""
        self.clear()
        return self.run(self._writer.arguments(self.room), **limits)

    def fault(self) -> str | None:
        """What is wrong with the output of a stopped run or with its repetition."""
        out = self.room / "out"
        if not self._writer.resumes and out.exists() and contents(out) != self.expected:
            return f"half an output: {sorted(contents(out))}"
        if self._writer.resumes:
            for path in out.glob("*.json"):
                json.loads(path.read_text(encoding="utf-8"))
        again = self.run(self._writer.again(self.room))
        if again.status != 0:
            return f"the repetition ended with status {again.status}: {again.err[-600:]!r}"
        if contents(out) != self.expected:
            found = contents(out)
            names = {*found, *self.expected}
            differing = [n for n in sorted(names) if found.get(n) != self.expected.get(n)]
            return f"the repetition gave another {', '.join(differing)}"
        return None

    def clear(self) -> None:
        """Empty the room."""
        for path in self.room.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def contents(folder: Path) -> dict[str, Any]:
    """What the files of a folder say, times apart; pictures by their presence."""
    found: dict[str, Any] = {}
    for path in _files(folder):
        name = str(path.relative_to(folder))
        data = path.read_bytes()
        if path.suffix == ".json":
            found[name] = _steady(json.loads(data))
        elif path.suffix == ".jsonl":
            found[name] = sorted(json.dumps(_steady(json.loads(row))) for row in data.splitlines())
        else:
            found[name] = None if path.suffix == ".png" else data
    return found


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def _steady(found: Any) -> Any:
    """The same without times."""
    if isinstance(found, dict):
        return {key: _steady(value) for key, value in found.items() if key not in VARYING}
    return [_steady(item) for item in found] if isinstance(found, list) else found
