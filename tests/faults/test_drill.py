"""The drill tells a fault when there is one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import cast

import pytest

from .damage import Damage
from .drill import Drill, Outcome, Promise, Worker
from .table import table_lines

WHOLE = Outcome(0, "tokens", "", peak=100)
REFUSED = Outcome(1, "", "lopa: error: it is damaged; build it again\n", peak=150)
BITTEN = Damage("bit flipped", "a", lambda out: (out / "a").write_text("y"))


class Scripted:
    """A worker whose outcomes are given."""

    obeys_permissions = True

    def __init__(self, ends: Iterable[Outcome]) -> None:
        self._ends = iter(ends)

    def run(self, arguments: Iterable[object]) -> Outcome:
        return next(self._ends)


@pytest.mark.parametrize(
    ("end", "verdict"),
    [
        (REFUSED, "refused"),
        (WHOLE, "right"),
        (Outcome(0, "others", "", 100), "other results"),
        (Outcome(1, "", "Traceback\n  ...\n", 100), "status 1"),
        (Outcome(1, "", REFUSED.err * 2, 100), "status 1"),
        (Outcome(1, "half", REFUSED.err, 100), "status 1"),
        (Outcome(70, "", "Traceback", 100), "status 70"),
        (Outcome(0, "tokens", "a line of a library\n", 100), "status 0"),
        (Outcome(None, "", "the process died with status -11"), "died with status -11"),
        (Outcome(0, "tokens", "", 201), "of memory"),
    ],
)
def test_verdict(tmp_path: Path, end: Outcome, verdict: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_text("x")
    (tmp_path / "room").mkdir()
    worker = cast(Worker, Scripted([WHOLE, WHOLE, end]))
    promise = Promise(lambda folder, out: [folder], lambda outcome, out: outcome.out)
    drill = Drill(worker, tmp_path / "folder", tmp_path / "room", promise)
    (tally,) = drill.run([BITTEN]).values()
    good = verdict in ("refused", "right")
    assert tally.counts == {verdict if good else "fault": 1}
    assert tally.faults == [] if good else verdict in tally.faults[0]


def test_a_worker_that_hangs_is_ended_and_started_again() -> None:
    worker = Worker(seconds=0)
    for _ in range(2):
        assert worker.run(["--version"]) == Outcome(None, "", "no answer in 0 s")
    assert worker.obeys_permissions


def test_table_adds_up() -> None:
    rows = [
        ("bundle", "missing", {"refused": 2}),
        ("bundle", "missing", {"refused": 1, "right": 4}),
        ("bundle", "field", {"fault": 1}),
    ]
    assert table_lines(rows)[2:] == [
        "| bundle | field | 1 | 0 | 0 | 0 | 1 |",
        "| bundle | missing | 7 | 3 | 4 | 0 | 0 |",
        "| all | | 8 | 3 | 4 | 0 | 1 |",
    ]
