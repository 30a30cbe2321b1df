"""Killed at any moment, or out of disk: no half output, and the command then succeeds."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import WHOLE, Record
from .drill import Tally, Worker
from .interrupted import Interruption, Writer, writers

KILLS, LIMITS = 20, 8
COMMANDS = ("export", "build", "calibrate", "eval", "tune")


@pytest.fixture(scope="module")
def server() -> Iterator[Worker]:
    made = Worker(module="fork_server", seconds=60)
    yield made
    made.stop()


@pytest.fixture
def writer(
    request: pytest.FixtureRequest,
    tiny_checkpoint: Path,
    tiny_model: Path,
    tiny_bundle: Path,
    tmp_path: Path,
) -> Writer:
    return writers(tiny_checkpoint, tiny_model, tiny_bundle, tmp_path / "inputs")[request.param]


@pytest.fixture
def room(tmp_path: Path) -> Path:
    (tmp_path / "room").mkdir()
    return tmp_path / "room"


@pytest.mark.parametrize("writer", COMMANDS, indirect=True)
def test_killed(server: Worker, writer: Writer, room: Path, record: Record) -> None:
    case, tally = Interruption(server, writer, room), Tally()
    draw = random.Random(writer.name)
    for number in range(KILLS if WHOLE else 1):
        seconds = draw.uniform(0, case.seconds)
        case.stop(seconds=seconds)
        fault = case.fault()
        tally.counts["fault" if fault else "right"] += 1
        if fault:
            tally.faults.append(f"{writer.name} killed after {seconds:.3f} s ({number}): {fault}")
    record(f"{writer.name}, repeated", {"killed": tally})


@pytest.mark.parametrize("writer", COMMANDS, indirect=True)
def test_no_file_may_grow(server: Worker, writer: Writer, room: Path, record: Record) -> None:
    """A limit on the size of files fails every write beyond it, like a full disk."""
    case, tally = Interruption(server, writer, room), Tally()
    draw = random.Random(writer.name)
    for _ in range(LIMITS if WHOLE else 1):
        size = draw.randrange(case.largest)
        _full(case, tally, writer, f"files of {size} bytes at most", bytes=size)
    record(f"{writer.name}, repeated", {"file limit": tally})


@pytest.mark.parametrize("writer", COMMANDS, indirect=True)
def test_the_disk_is_full(
    server: Worker, writer: Writer, room: Path, tmp_path: Path, record: Record
) -> None:
    """On a file system too small for the output, then on one that has room."""
    case, tally = Interruption(server, writer, room), Tally()
    for part in (0.05, 0.3, 0.6, 0.9) if WHOLE else (0.5,):
        kilobytes = max(4, round(case.total * part) >> 10)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(room)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("no permission to mount a small file system")
        try:
            _full(case, tally, writer, f"a disk of {kilobytes} kB", grow=room)
        finally:
            subprocess.run(["umount", str(room)], check=True)
    record(f"{writer.name}, repeated", {"disk full": tally})


def _full(
    case: Interruption,
    tally: Tally,
    writer: Writer,
    what: str,
    grow: Path | None = None,
    **limits: int,
) -> None:
    """Run into the limit, then repeat without it."""
    ended = case.stop(**limits)
    lines = [line for line in ended.err.splitlines() if line.startswith("lopa: error: ")]
    fault = None
    if ended.status not in (0, 1) or (ended.status == 1 and (len(lines) != 1)):
        fault = f"status {ended.status}: {ended.err[-600:]!r}"
    if grow is not None:
        subprocess.run(["mount", "-o", "remount,size=64m", str(grow)], check=True)
    fault = fault or case.fault()
    end = "right" if ended.status == 0 else "refused"
    tally.counts["fault" if fault else end] += 1
    if fault:
        tally.faults.append(f"{writer.name} with {what}: {fault}")
