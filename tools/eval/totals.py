"""Sums over samples, and the closing table."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any

from .samples import Sample

HEAD = ("task", "correct", "score %", "TPF", "useful TPF", "rows/token", "tokens/s")
ALL = "all"


@dataclass(frozen=True)
class Totals:
    """Counts over problems; ratios are of the sums, not means of ratios."""

    problems: int
    correct: int
    tokens: int
    useful_tokens: int
    steps: int
    forwards: int
    rows: int
    seconds: float

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> Totals:
        """Sum up samples."""
        found = list(samples)
        return cls(
            problems=len(found),
            correct=sum(sample.correct for sample in found),
            tokens=sum(sample.tokens for sample in found),
            useful_tokens=sum(sample.useful_tokens for sample in found),
            steps=sum(sample.steps for sample in found),
            forwards=sum(sample.forwards for sample in found),
            rows=sum(sample.rows for sample in found),
            seconds=sum(sample.seconds for sample in found),
        )

    def __add__(self, more: Totals) -> Totals:
        return Totals(*map(operator.add, astuple(self), astuple(more)))

    @property
    def score(self) -> float:
        """Correct answers in percent."""
        return 100 * _ratio(self.correct, self.problems)

    @property
    def tpf(self) -> float:
        """Committed tokens per step."""
        return _ratio(self.tokens, self.steps)

    @property
    def useful_tpf(self) -> float:
        """Tokens up to and including the first stop token, per step."""
        return _ratio(self.useful_tokens, self.steps)

    @property
    def rows_per_token(self) -> float:
        """Rows computed per committed token, padding included."""
        return _ratio(self.rows, self.tokens)

    @property
    def rows_per_step(self) -> float:
        """Rows computed per step, padding included."""
        return _ratio(self.rows, self.steps)

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens per second of decoding."""
        return _ratio(self.tokens, self.seconds)

    def to_json(self) -> dict[str, Any]:
        """Counts and ratios, rounded."""
        return {
            **asdict(self),
            "seconds": round(self.seconds, 6),
            "score": round(self.score, 4),
            "tpf": round(self.tpf, 4),
            "useful_tpf": round(self.useful_tpf, 4),
            "rows_per_token": round(self.rows_per_token, 4),
            "rows_per_step": round(self.rows_per_step, 4),
            "tokens_per_second": round(self.tokens_per_second, 4),
        }

    def cells(self, name: str) -> tuple[str, ...]:
        """A row of the closing table."""
        return (
            name,
            f"{self.correct}/{self.problems}",
            f"{self.score:.1f}",
            f"{self.tpf:.2f}",
            f"{self.useful_tpf:.2f}",
            f"{self.rows_per_token:.1f}",
            f"{self.tokens_per_second:.0f}",
        )


def totals_by_task(samples: Iterable[Sample], labels: Iterable[str]) -> dict[str, Totals]:
    """Totals of every task, and of all together when there is more than one."""
    found = list(samples)
    names = list(labels)
    totals = {name: Totals.of(sample for sample in found if sample.task == name) for name in names}
    return totals if len(names) == 1 else {**totals, ALL: Totals.of(found)}


def overall(totals: Mapping[str, Totals]) -> Totals:
    """The totals of all tasks together."""
    return totals[ALL] if ALL in totals else next(iter(totals.values()))


def score_table(totals: Mapping[str, Totals]) -> list[tuple[str, ...]]:
    """Rows of the closing table under their heading."""
    return [HEAD, *(item.cells(name) for name, item in totals.items())]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
