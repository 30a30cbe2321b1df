"""What one decode looks like: which position was filled at which step, how surely, by whom."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from ...runtime.decoder import StepEvent

# Share of confidence from which a colour counts. Orange is below the usual threshold of 0.9: such
# a token was forced, or a lookahead branch ran ahead with it. Both halves stay apart in every
# common colour blindness, and their lightness rises towards the middle.
BOUNDS = (0.5, 0.7, 0.9, 0.95, 0.99)
COLOURS = ("#a34a05", "#e07f1c", "#fcbf75", "#a9cbe8", "#5a9bd0", "#1d5fa6")
BIN_NAMES = ("below 0.5", "0.5 to 0.7", "0.7 to 0.9", "0.9 to 0.95", "0.95 to 0.99", "0.99 to 1")


@dataclass(frozen=True)
class Fill:
    """One committed token. `ahead`: a lookahead branch had put it there."""

    step: int
    position: int  # counted from the end of the prompt
    text: str
    confidence: float  # probability of the token when it was chosen
    ahead: bool

    @property
    def bin(self) -> int:
        """Index into COLOURS."""
        return bisect_right(BOUNDS, self.confidence)


@dataclass(frozen=True)
class Step:
    """One step: branches run, winner (0: the anchor, else the lookahead's rank), extent."""

    number: int
    branches: int
    lookahead: int
    length: int  # positions behind the prompt that existed


@dataclass(frozen=True)
class Picture:
    """A decode ready to be drawn."""

    title: str
    subtitle: str
    block_size: int
    fills: tuple[Fill, ...]
    steps: tuple[Step, ...]
    positions: int
    useful: int  # positions up to and including the first stop token

    @property
    def won(self) -> tuple[Step, ...]:
        """Steps won by a lookahead branch."""
        return tuple(step for step in self.steps if step.lookahead)


@dataclass
class Recorder:
    """Collects the events of one decode of `prompt_tokens` tokens; call it with every event."""

    prompt_tokens: int
    piece: Callable[[int], str]
    fills: list[Fill] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    _guessed: dict[int, float] = field(default_factory=dict)

    def __call__(self, event: StepEvent) -> None:
        """Take in a step."""
        for position, token in event.extras:
            # Chosen from what the step before predicted, committed by this one.
            sure = self._guessed.get(position, event.confidences[event.winner])
            self._add(event.step, position, token, sure, ahead=True)
        guesses = event.guesses
        self._guessed = {
            int(position): float(probability)
            for position, probability in zip(guesses.positions, guesses.probability, strict=True)
        }
        for position, token in event.filled:
            self._add(event.step, position, token, self._guessed[position], ahead=False)
        self.steps.append(
            Step(
                number=event.step,
                branches=len(event.scores),
                lookahead=0 if event.anchor_won else event.winner + 1,
                length=len(event.tokens) - self.prompt_tokens,
            )
        )

    def picture(
        self, title: str, subtitle: str, block_size: int, positions: int, useful: int
    ) -> Picture:
        """The decode so far, without what was cut off at the end."""
        kept = tuple(item for item in self.fills if item.position < positions)
        return Picture(title, subtitle, block_size, kept, tuple(self.steps), positions, useful)

    def _add(self, step: int, position: int, token: int, sure: float, ahead: bool) -> None:
        text = self.piece(token)
        self.fills.append(Fill(step, position - self.prompt_tokens, text, sure, ahead))


def visible(text: str) -> str:
    """A token with its white space shown."""
    shown = text.replace("\n", "↵").replace("\t", "⇥").replace(" ", "␣")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shown)
