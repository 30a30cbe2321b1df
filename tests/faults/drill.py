"""Runs cases in a worker process and judges how each ended."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..conftest import REPOSITORY
from .damage import Damage

SECONDS = 10  # a case that takes longer hangs
START_SECONDS = 120
REFUSED, RIGHT, ANY = "refused", "right", "any"


@dataclass(frozen=True)
class Outcome:
    """How a command line ended; `status` is None when the process died or hung."""

    status: int | None
    out: str
    err: str
    peak: int = 0  # bytes of memory
    seconds: float = 0.0


class Worker:
    """A process that runs command lines; started again after one that killed it."""

    def __init__(self, *flags: str, module: str = "worker", seconds: float = SECONDS) -> None:
        self._command = [sys.executable, "-m", f"tests.faults.{module}", *flags]
        self._seconds = seconds
        self._process: subprocess.Popen[str] | None = None
        self.obeys_permissions = True

    def run(self, arguments: Iterable[object]) -> Outcome:
        """Run one command line."""
        return self.send([str(argument) for argument in arguments])

    def send(self, request: object) -> Outcome:
        """Send a request of the module's own form."""
        process = self._started()
        assert process.stdin is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answer = self._answer(process, self._seconds)
        if isinstance(answer, str):
            self.stop()
            return Outcome(None, "", answer)
        return Outcome(**answer)

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                self._command, stdin=pipe, stdout=pipe, text=True, cwd=REPOSITORY
            )
            ready = self._answer(self._process, START_SECONDS)
            assert not isinstance(ready, str), ready
            self.obeys_permissions = ready["obeys_permissions"]
        return self._process

    def _answer(self, process: subprocess.Popen[str], seconds: float) -> dict[str, Any] | str:
        """The next line of the process, or what became of it."""
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], seconds)[0]:
            return f"no answer in {seconds} s"
        line = process.stdout.readline()
        if not line:
            return f"the process died with status {process.wait()}"
        found: dict[str, Any] = json.loads(line)
        return found


@dataclass(frozen=True)
class Promise:
    """What a command does with a damaged folder."""

    command: Callable[[Path, Path], list[object]]  # from the folder and a name for outputs
    result: Callable[[Outcome, Path], object]  # what must be the same as with the whole folder
    exact: bool = True  # False: other results are no fault (unverified, or sealed again)
    report: bool = False  # a refusal may be told on standard output


@dataclass
class Tally:
    """Counts of one kind of case, and the faults."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


class Drill:
    """One command on damaged copies of one folder."""

    def __init__(self, worker: Worker, folder: Path, room: Path, promise: Promise) -> None:
        self._worker, self._folder, self._room, self._promise = worker, folder, room, promise
        self._out = room / "out"
        for _ in range(2):  # the first loads libraries
            whole = self._run(Path(shutil.copytree(folder, room / "whole")))
            assert whole.status == 0, whole.err
            self._expected = promise.result(whole, self._out)
            shutil.rmtree(room / "whole")
        self._peak = whole.peak

    def run(self, damages: Iterable[Damage]) -> dict[str, Tally]:
        """Run every case; tallies by kind."""
        tallies: dict[str, Tally] = {}
        for damage in damages:
            if damage.kind == "unreadable" and not self._worker.obeys_permissions:
                continue
            tally = tallies.setdefault(damage.kind, Tally())
            folder = Path(shutil.copytree(self._folder, self._room / "damaged"))
            damage.apply(folder)
            outcome = self._run(folder)
            shutil.rmtree(folder)
            verdict = self._judge(outcome)
            tally.counts[verdict if verdict in (REFUSED, RIGHT, ANY) else "fault"] += 1
            if verdict not in (REFUSED, RIGHT, ANY):
                tally.faults.append(f"{damage.kind}: {damage.name}: {verdict}")
        return tallies

    def _run(self, folder: Path) -> Outcome:
        shutil.rmtree(self._out, ignore_errors=True)
        return self._worker.run(self._promise.command(folder, self._out))

    def _judge(self, outcome: Outcome) -> str:
        """One of the good ends, or what is wrong with this one."""
        if outcome.status is None:
            return outcome.err
        if outcome.peak > 2 * self._peak:
            return f"{outcome.peak >> 20} MB of memory, {self._peak >> 20} MB when whole"
        lines = [line for line in outcome.err.splitlines() if "lopa: warning: " not in line]
        if outcome.status == 1:
            said = self._promise.report and not lines and outcome.out
            one_line = len(lines) == 1 and lines[0].startswith("lopa: error: ")
            if self._out.exists():
                return f"refused, but wrote {sorted(p.name for p in self._out.iterdir())}"
            return REFUSED if said or (one_line and not outcome.out) else _end(outcome)
        if outcome.status or lines:
            return _end(outcome)
        if self._promise.result(outcome, self._out) == self._expected:
            return RIGHT
        return "other results" if self._promise.exact else ANY


def _end(outcome: Outcome) -> str:
    return f"status {outcome.status}: {outcome.err[-600:]!r}"
