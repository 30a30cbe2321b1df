"""Sums over samples, and the closing table."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, fields
from typing import Any

from .samples import Sample

HEAD = ("task", "correct", "score %", "TPF", "useful TPF", "rows/token", "tokens/s")
RATIOS = ("score", "tpf", "useful_tpf", "rows_per_token", "rows_per_step", "tokens_per_second")
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
        summed = [field.name for field in fields(cls)[1:]]
        return cls(len(found), *(sum(getattr(item, name) for item in found) for name in summed))

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
        ratios = {name: round(getattr(self, name), 4) for name in RATIOS}
        return {**asdict(self), "seconds": round(self.seconds, 6), **ratios}

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
