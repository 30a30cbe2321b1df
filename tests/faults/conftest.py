from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ..exported import Exports
from ..runtime.engines.tensorrt.bundle import write_bundle
from .drill import Tally, Worker
from .table import table_lines

Case = TypeVar("Case")
Record = Callable[[str, dict[str, Tally]], None]
WHOLE = os.environ.get("LOPA_FAULTS") == "all"


def chosen(cases: Iterable[Case], count: int, seed: int, most: int | None = None) -> list[Case]:
    """`count` cases, drawn by the seed; in a whole run (LOPA_FAULTS=all) all, or `most`."""
    listed = list(cases)
    count = (most or len(listed)) if WHOLE else count
    return random.Random(seed).sample(listed, min(count, len(listed)))


@pytest.fixture
def record(record_property: Callable[[str, object], None]) -> Record:
    """Keeps the counts for the table and fails on faults, all of them in one message."""

    def keep(subject: str, tallies: dict[str, Tally]) -> None:
        for kind, tally in tallies.items():
            record_property("faults", [subject, kind, dict(tally.counts)])
        faults = [fault for tally in tallies.values() for fault in tally.faults]
        assert not faults, "\n".join(faults)

    return keep


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.stop()


@pytest.fixture(scope="session")
def other_model(exports: Exports) -> Path:
    """The tiny model with other weights and block length."""
    checkpoint = exports.checkpoint("other", seed=1, block_size=16)
    return exports.model("other", checkpoint, candidates=16)


@pytest.fixture(scope="session")
def other_bundle(exports: Exports, other_model: Path) -> Path:
    return exports.bundle("other", other_model, 4, (24, 48), (64, 96))


@pytest.fixture(scope="session")
def compiled(
    tiny_bundle: Path, other_bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Two bundles for the double of TensorRT, of the tiny model and the other one."""
    folders = tmp_path_factory.mktemp("compiled")
    for name, source in (("tiny", tiny_bundle), ("other", other_bundle)):
        write_bundle(folders / name, source)
    return folders / "tiny", folders / "other"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table of docs/reliability.md with the counts of this run."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    rows = [
        value
        for report in reports
        for name, value in getattr(report, "user_properties", [])
        if name == "faults" and report.when == "call"
    ]
    if rows:
        terminalreporter.section("fault drill")
        for line in table_lines(rows):
            terminalreporter.write_line(line)
