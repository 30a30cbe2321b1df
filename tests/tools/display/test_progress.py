from __future__ import annotations

import sys
import threading

import pytest
from lopa.tools.display.progress import LINE_SECONDS, ProgressLines, _written, show_progress

from ..terminal import Terminal


class Beats(threading.Event):
    """Lets one beat pass when `news` is there; the next one waits for the end."""

    def __init__(self) -> None:
        super().__init__()
        self.news, self.passed, self.asked = threading.Event(), threading.Event(), 0.0

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        if self.news.is_set():
            self.passed.set()
            return super().wait()
        self.asked = timeout
        self.news.wait()
        return False


def test_lines_have_stage_amount_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    lines = ProgressLines(lambda: now)
    lines.write()
    assert capsys.readouterr() == ("", "")
    lines("decoding the prompts", 12, 128, "of 128")
    now += 3.9
    lines.write()
    lines("writing", 1_500_000, 3_000_000)
    lines("building for tensorrt", 40, 100, "%")
    now += 3600
    lines.write()
    lines("reading", 0, 1)
    lines.write()
    assert capsys.readouterr() == (
        "",
        "lopa: decoding the prompts, 12 of 128, 0:00:03\n"
        "lopa: building for tensorrt, 40 %, 1:00:03\n"
        "lopa: reading, 1:00:03\n",
    )


def test_a_pipe_gets_a_line_per_beat_and_none_when_all_is_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    beats = Beats()
    with _written(ProgressLines(lambda: 0.0), beats) as progress:
        progress("writing", 1_500_000, 3_000_000)
        beats.news.set()
        assert beats.passed.wait(60)
        progress("writing", 3_000_000, 3_000_000)
    assert beats.asked == LINE_SECONDS
    assert capsys.readouterr() == ("", "lopa: writing, 1.50 MB of 3.00 MB, 0:00:00\n")


def test_a_reader_that_has_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(Terminal):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    lines = ProgressLines(lambda: 0.0)
    lines("reading", 0, 1)
    monkeypatch.setattr(sys, "stderr", Closed())
    lines.write()


def test_a_bar_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    threads = threading.active_count()
    with show_progress() as progress:  # a pipe: silent when it is quick
        progress("tracing", 0, 1)
        assert threading.active_count() == threads + 1
    assert capsys.readouterr() == ("", "")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with show_progress(shown=False) as progress:
        progress("tracing", 0, 1)
        assert threading.active_count() == threads
    assert terminal.getvalue() == ""
    with show_progress() as progress:
        progress("tracing", 0, 1)
        progress("writing", 1_500_000, 3_000_000)
    assert "writing" in terminal.getvalue()
    assert "1.50 MB of 3.00 MB" in terminal.getvalue()
