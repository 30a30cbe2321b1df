"""Decodes the same prompts with both sides and compares tokens, winners, steps and scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...calibration.fidelity import same_tokens
from ...runtime.options import DecodeOptions
from ...runtime.prompt import stop_index
from ...runtime.session import Session


@dataclass(frozen=True)
class Question:
    """A prompt as token ids; `grade` tells whether a decoded text is right, if that is known."""

    id: str
    ids: list[int]
    grade: Callable[[str], bool] | None = None


@dataclass(frozen=True)
class Decode:
    """What one side made of a prompt: tokens up to the first stop token, winner of every step."""

    tokens: tuple[int, ...]
    winners: tuple[int, ...]
    right: bool | None


@dataclass(frozen=True)
class DecodesReport:
    """End to end over all prompts; every pair is A, B. Scores are shares of right answers."""

    prompts: int
    identical: int  # prompts with the same tokens
    tokens: tuple[int, int]
    token_agreement: float
    winner_agreement: float  # share of steps with the same winning branch
    steps: tuple[int, int]
    right: tuple[int, int] | None

    @property
    def score_loss(self) -> float | None:
        """Points of score that B loses, in percent of the prompts."""
        if self.right is None:
            return None
        return 100 * (self.right[0] - self.right[1]) / self.prompts


def decode(
    session: Session,
    questions: Sequence[Question],
    options: DecodeOptions,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Decode]:
    """Decode every question; raises LopaError for settings or prompts the bundle cannot serve."""
    decodes = []
    for number, question in enumerate(questions, 1):
        decodes.append(_decode(session, question, options))
        progress(number, len(questions))
    return decodes


def compare_decodes(first: Sequence[Decode], second: Sequence[Decode]) -> DecodesReport:
    """Compare the decodes of A and B, prompt by prompt."""
    pairs = list(zip(first, second, strict=True))
    graded = all(decode.right is not None for decode in (*first, *second))

    def total(count: Callable[[Decode], Any]) -> tuple[int, int]:
        one, two = (sum(int(count(item)) for item in side) for side in (first, second))
        return one, two

    return DecodesReport(
        prompts=len(pairs),
        identical=sum(one.tokens == two.tokens for one, two in pairs),
        tokens=total(lambda item: len(item.tokens)),
        token_agreement=same_tokens([(one.tokens, two.tokens) for one, two in pairs])[0],
        winner_agreement=same_tokens([(one.winners, two.winners) for one, two in pairs])[0],
        steps=total(lambda item: len(item.winners)),
        right=total(lambda item: item.right) if graded and pairs else None,
    )


def _decode(session: Session, question: Question, options: DecodeOptions) -> Decode:
    winners: list[int] = []
    result = session.generate(
        prompt_ids=question.ids,
        options=options,
        on_step=lambda event: winners.append(event.winner),
    )
    stops = frozenset(session.manifest.model.stop_token_ids)
    tokens = result.token_ids[: stop_index(result.token_ids, stops) + 1]
    right = None if question.grade is None else question.grade(result.text)
    return Decode(tokens, tuple(winners), right)
