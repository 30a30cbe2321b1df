from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import lopa as package
import pytest
from lopa.runtime.decoder import StepEvent
from lopa.runtime.session import Session
from lopa.tools.display import live
from lopa.tools.display.live import MASK_MARK, LiveWindow, clean, fit
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..terminal import Terminal
from .conftest import Lopa

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def session(tiny_bundle: Path) -> Session:
    return package.open_bundle(tiny_bundle, threads=1)


@pytest.fixture(autouse=True)
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SECONDS_PER_FRAME", 0.0)
    monkeypatch.setenv("TERM", "xterm-256color")


def draw(
    session: Session, width: int, height: int, **settings: Any
) -> tuple[LiveWindow, list[str]]:
    """Decode and return the window with its frames as plain text."""
    console = Console(file=Terminal(), width=width, height=height, force_terminal=True)
    window = LiveWindow(Live(console=console, auto_refresh=False), session.codec, 3)
    frames = []

    def on_step(event: StepEvent) -> None:
        window(event)
        with console.capture() as capture:
            console.print(window.frame(event))
        frames.append(ESCAPES.sub("", capture.get()))

    session.generate(prompt_ids=[5, 6, 7], on_step=on_step, **settings)
    return window, frames


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 12), (16, 5), (10, 2)])
@pytest.mark.parametrize("strategy", ["lopa", "vanilla"])
def test_frames_fit_the_terminal(session: Session, width: int, height: int, strategy: str) -> None:
    _, frames = draw(session, width, height, strategy=strategy, max_new_tokens=40)
    for frame in frames:
        lines = frame.splitlines()
        assert len(lines) <= max(height - 1, 4)
        assert all(len(line) <= width for line in lines)


def test_numbers_are_those_of_the_result(session: Session) -> None:
    expected = session.generate(prompt_ids=[5, 6, 7], max_new_tokens=40)
    window, frames = draw(session, 80, 24, max_new_tokens=40)
    assert window.tokens == expected.tokens == 40
    assert f"TPF {expected.tpf:.2f}  40 tokens" in frames[-1]
    assert f"step {expected.steps}  " in frames[-1]
    assert MASK_MARK in frames[0]
    assert MASK_MARK not in frames[-1]


def test_frames_name_the_winner(session: Session) -> None:
    events: list[tuple[int, int]] = []
    session.generate(
        prompt_ids=[5, 6, 7],
        max_new_tokens=40,
        on_step=lambda event: events.append((event.winner, len(event.scores))),
    )
    _, frames = draw(session, 80, 24, max_new_tokens=40)
    for frame, (winner, branches) in zip(frames, events, strict=True):
        name = "anchor" if winner == branches - 1 else f"#{winner + 1}"
        won = "anchor won" if winner == branches - 1 else f"lookahead #{winner + 1} won"
        assert f"▸{name} " in frame
        assert won in frame
        assert frame.count("▸") == 1


def test_a_long_text_shows_its_open_end() -> None:
    console = Console(file=io.StringIO(), width=10, height=6)
    text = Text("\n".join(f"line {index}" for index in range(20)))
    assert [line.plain.strip() for line in fit(text, console, 3)] == [
        "line 17",
        "line 18",
        "line 19",
    ]
    text.plain = text.plain.replace("line 7", f"line {MASK_MARK}")
    assert [line.plain.strip() for line in fit(text, console, 3)] == [
        "line 6",
        f"line {MASK_MARK}",
        "line 8",
    ]


def test_escape_sequences_of_a_model_are_not_sent_to_the_terminal() -> None:
    assert clean("a\x1b[2Jb\tc\nd\x07\x9b") == "a\ufffd[2Jb\tc\nd\ufffd\ufffd"


def test_terminal_gets_the_window_then_the_answer(
    lopa: Lopa, tiny_bundle: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    prompts = ["generate", tiny_bundle, "--prompt", "the other", "--max-new-tokens", 24]
    assert lopa(*prompts).status == 0
    plain = ESCAPES.sub("", terminal.getvalue())
    expected = session.generate("the other", max_new_tokens=24)
    assert "▸anchor" in plain
    assert clean(expected.text) in plain
    assert f"24 tokens, {expected.steps} steps" in plain.replace(
        f" ({expected.useful_tokens} useful)", ""
    )


def test_no_color_keeps_colours_out(
    lopa: Lopa, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    lopa("generate", tiny_bundle, "--prompt", "the other", "--max-new-tokens", 24)
    codes = {
        code
        for text in re.findall(r"\x1b\[([0-9;]*)m", terminal.getvalue())
        for code in text.split(";")
    }
    assert not {code for code in codes if code[:1] in "349" and len(code) > 1}


@pytest.mark.parametrize("flag", ["-q", "--json"])
def test_quiet_and_json_draw_nothing_on_a_terminal(
    lopa: Lopa, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    lopa("generate", tiny_bundle, "--prompt", "the other", "--max-new-tokens", 8, flag)
    assert "\x1b" not in terminal.getvalue()
    assert "▸" not in terminal.getvalue()
