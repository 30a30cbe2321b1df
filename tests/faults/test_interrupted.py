"""Killed at any moment, or out of disk: no half output, and the command then succeeds."""

from __future__ import annotations

import functools
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import WHOLE, Record
from .drill import Tally, Worker
from .interrupted import Interruption, writers

KILLS, LIMITS = 20, 8
Cases = Callable[[str], Interruption]
COMMANDS = ("export", "build", "calibrate", "eval", "tune")


@pytest.fixture(scope="module")
def server() -> Iterator[Worker]:
    made = Worker(module="fork_server", seconds=60)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def cases(
    server: Worker,
    tiny_checkpoint: Path,
    tiny_model: Path,
    tiny_bundle: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], Interruption]:
    """Makes the case of a command, once."""
    root = tmp_path_factory.mktemp("interrupted")
    found = writers(tiny_checkpoint, tiny_model, tiny_bundle, root / "inputs")
    return functools.cache(lambda name: Interruption(server, found[name], root / name))


@pytest.mark.parametrize("command", COMMANDS)
def test_killed(cases: Cases, command: str, record: Record) -> None:
    case, tally, draw = cases(command), Tally(), random.Random(command)
    for number in range(KILLS if WHOLE else 1):
        seconds = draw.uniform(0, case.seconds)
        case.stop(seconds=seconds)
        fault = case.fault()
        tally.counts["fault" if fault else "right"] += 1
        if fault:
            tally.faults.append(f"{command} killed after {seconds:.3f} s ({number}): {fault}")
    record(f"{command}, repeated", {"killed": tally})


@pytest.mark.parametrize("command", COMMANDS if WHOLE else ("build", "calibrate", "eval"))
def test_no_file_may_grow(cases: Cases, command: str, record: Record) -> None:
    """A limit on the size of files fails every write beyond it, like a full disk."""
    case, tally, draw = cases(command), Tally(), random.Random(command)
    for _ in range(LIMITS if WHOLE else 1):
        size = draw.randrange(case.largest)
        _full(case, tally, f"files of {size} bytes at most", bytes=size)
    record(f"{command}, repeated", {"file limit": tally})


@pytest.mark.parametrize("command", COMMANDS if WHOLE else ("build", "tune"))
def test_the_disk_is_full(cases: Cases, command: str, record: Record) -> None:
    """On a file system too small for the output, which then gets room."""
    case, tally = cases(command), Tally()
    for part in (0.05, 0.3, 0.6, 0.9) if WHOLE else (0.5,):
        kilobytes = max(4, round(case.total * part) >> 10)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(case.room)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("no permission to mount a small file system")
        try:
            _full(case, tally, f"a disk of {kilobytes} kB", grow=True)
        finally:
            subprocess.run(["umount", str(case.room)], check=True)
    record(f"{command}, repeated", {"disk full": tally})


def _full(case: Interruption, tally: Tally, what: str, grow: bool = False, **limits: int) -> None:
    """Run into the limit, then repeat without it."""
    ended = case.stop(**limits)
    lines = [line for line in ended.err.splitlines() if line.startswith("lopa: error: ")]
    fault = None
    if ended.status not in (0, 1) or (ended.status == 1 and len(lines) != 1):
        fault = f"status {ended.status}: {ended.err[-600:]!r}"
    if grow:
        subprocess.run(["mount", "-o", "remount,size=64m", str(case.room)], check=True)
    fault = fault or case.fault()
    end = "right" if ended.status == 0 else "refused"
    tally.counts["fault" if fault else end] += 1
    if fault:
        tally.faults.append(f"{case.name} with {what}: {fault}")
