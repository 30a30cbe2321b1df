from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from lopa.tools.cli import main
from lopa.tools.display import progress


@dataclass(frozen=True)
class Outcome:
    """Exit status, standard output and standard error of one command line."""

    status: int
    out: str
    err: str


Lopa = Callable[..., Outcome]


@pytest.fixture
def lopa(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lopa:
    """Runs one command line in this process, however slow without lines of progress."""
    monkeypatch.setattr(progress, "LINE_SECONDS", 1e6)

    def run(*arguments: object) -> Outcome:
        capfd.readouterr()
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else 1
        return Outcome(status, *capfd.readouterr())

    return run
