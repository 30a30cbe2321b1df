"""Shows a window filling in: one frame per step, as much of the text as the terminal holds."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ...runtime.strategies.lopa import UNCONFIRMED

if TYPE_CHECKING:
    from ...runtime.decoder import StepEvent
    from ...runtime.prompt import TextCodec

MASK_MARK, STOP_MARK = "░", "·"
SURE_GUESS = 0.5  # probability from which a guess is shown instead of a mask
SECONDS_PER_FRAME = 1 / 30
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # a model may emit terminal escapes
STYLES = {
    "kept": "",
    "fresh": "bold green",
    "ahead": "bold magenta",  # the token by which a lookahead branch ran ahead
    "guess": "dim italic",
    "mask": "dim",
    "stop": "dim",
}


@dataclass
class LiveWindow:
    """Draws the steps of one prompt of `prompt_tokens` tokens; call it with every event."""

    live: Live
    codec: TextCodec
    prompt_tokens: int
    fresh: set[int] = field(default_factory=set)
    ahead: set[int] = field(default_factory=set)
    tokens: int = 0
    seconds: float = 0.0  # of decoding, without the drawing
    _resumed: float = field(default_factory=time.perf_counter)
    _drawn: float = 0.0

    def __call__(self, event: StepEvent) -> None:
        """Take in a step; draws at most 30 frames a second."""
        now = time.perf_counter()
        self.seconds += now - self._resumed
        self.fresh.update(position for position, _ in event.filled)
        self.tokens += len(event.filled)
        self.ahead.update(position for position, _ in event.extras)
        self.tokens += len(event.extras)
        if now - self._drawn >= SECONDS_PER_FRAME:
            self.live.update(self.frame(event), refresh=True)
            self._drawn = now
            self.fresh.clear()
            self.ahead.clear()
        self._resumed = time.perf_counter()

    def frame(self, event: StepEvent) -> Group:
        """The text that fits, the branches, the numbers."""
        console = self.live.console
        rule = Text("─" * console.width, "dim")
        footer = [rule, branch_line(event), self._numbers(event)]
        return Group(*fit(self._text(event), console, console.height - len(footer) - 1), *footer)

    def _numbers(self, event: StepEvent) -> Text:
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(f"TPF {self.tokens / event.step:.2f}", "bold cyan")
        speed = f"  {self.tokens / self.seconds:.0f} tokens/s" if self.seconds else ""
        line.append(f"  {self.tokens} tokens{speed}  step {event.step}  ")
        winner = "anchor" if event.anchor_won else f"lookahead #{event.winner + 1}"
        return line.append(f"{winner} won", _winner_style(event))

    def _text(self, event: StepEvent) -> Text:
        text = Text()
        for kind, tokens in self._runs(event):
            if kind in ("mask", "stop"):
                shown = (MASK_MARK if kind == "mask" else STOP_MARK) * len(tokens)
            else:
                shown = clean(self.codec.tokenizer.decode(tokens, skip_special_tokens=False))
            if kind == "guess":
                shown = shown.replace("\n", "↵")
            text.append(shown, STYLES[kind])
        return text

    def _runs(self, event: StepEvent) -> Iterator[tuple[str, list[int]]]:
        """Neighbouring tokens of one kind, decoded together so that characters stay whole."""
        guesses = {
            int(position): int(token)
            for position, token, probability in zip(
                event.guesses.positions,
                event.guesses.token_ids,
                event.guesses.probability,
                strict=True,
            )
            if probability >= SURE_GUESS and int(token) not in self.codec.stop_token_ids
        }

        def kind(position: int) -> str:
            if event.masked[position]:
                return "guess" if position in guesses else "mask"
            if int(event.tokens[position]) in self.codec.stop_token_ids:
                return "stop"
            if position in self.ahead:
                return "ahead"
            return "fresh" if position in self.fresh else "kept"

        for name, positions in groupby(range(self.prompt_tokens, len(event.tokens)), kind):
            yield (
                name,
                [
                    guesses[position] if name == "guess" else int(event.tokens[position])
                    for position in positions
                ],
            )


def branch_line(event: StepEvent) -> Text:
    """Scores of the anchor and of the lookaheads, surest first; the winner is marked."""
    line = Text(no_wrap=True, overflow="ellipsis")
    last = len(event.scores) - 1
    for index in (last, *range(last)):
        name = "anchor" if index == last else f"#{index + 1}"
        score = _score_text(event.scores[index])
        won = index == event.winner
        style = _winner_style(event) if won else "dim"
        line.append(f"{'▸' if won else ' '}{name} {score}", style)
    return line


def _score_text(score: float) -> str:
    """A branch score, or the number of confirmed tokens of a nested branch."""
    if score == UNCONFIRMED:
        return "-"
    return f"{score:.0f}" if score.is_integer() else f"{score:.2f}".removeprefix("0")


def fit(text: Text, console: Console, rows: int) -> list[Text]:
    """Wrap to the terminal's width and keep `rows` lines, from the first open line if possible."""
    lines = list(text.wrap(console, console.width))
    opened = next((i for i, line in enumerate(lines) if MASK_MARK in line.plain), len(lines))
    rows = max(rows, 1)
    start = max(0, min(opened - 1, len(lines) - rows))
    return lines[start : start + rows]


def clean(text: str) -> str:
    """Text without control characters other than tab and newline."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


@contextlib.contextmanager
def show_window(codec: TextCodec, prompt_tokens: int) -> Iterator[LiveWindow]:
    """Draw the window on standard output while a prompt decodes, then take it away again."""
    with Live(
        console=Console(highlight=False),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        vertical_overflow="crop",
    ) as live:
        yield LiveWindow(live, codec, prompt_tokens)


def _winner_style(event: StepEvent) -> str:
    return "bold green" if event.anchor_won else "bold magenta"
