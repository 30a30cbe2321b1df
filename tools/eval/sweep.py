"""One decode setting over several values: the variants, and how they compare to the base."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...runtime.contract import LopaError
from ...runtime.options import DecodeOptions
from ...runtime.strategies.registry import LOOKAHEADS
from .evaluate import Variant
from .samples import Sample
from .totals import Totals, overall, totals_by_task

ALLOWED_LOSS = 1.0  # points of score that the best value may lose against the base
ROUNDING = 1e-9  # of differences between scores
OBJECTIVES = {"tpf": "TPF", "useful_tpf": "useful TPF"}  # figure of Totals: heading of its column


@dataclass(frozen=True)
class SpeedUp:
    """Seconds of the base over seconds of a value, problem by problem: median and quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Value:
    """One value of the swept setting against the base."""

    value: Any
    totals: Mapping[str, Totals]  # by task; "all" when there is more than one
    score_change: float  # points, over all tasks
    tpf_gain: float
    useful_tpf_gain: float
    speed_up: SpeedUp

    @property
    def overall(self) -> Totals:
        """Totals over all tasks."""
        return overall(self.totals)


@dataclass(frozen=True)
class Sweep:
    """All values of a setting, the base first.

    The best has the highest `objective` ("tpf" or "useful_tpf") among those that are `safe`: they
    lose no more than `allowed_loss` points of score. The base wins a tie.
    """

    field: str
    values: tuple[Value, ...]
    allowed_loss: float = ALLOWED_LOSS
    objective: str = "tpf"

    @property
    def base(self) -> Value:
        """What all others are compared with."""
        return self.values[0]

    @property
    def safe(self) -> list[Value]:
        """The values that keep the score, the base among them, the best first."""
        kept = [item for item in self.values if item.score_change >= -self.allowed_loss - ROUNDING]
        return self._ranked(kept)

    @property
    def best(self) -> Value:
        """The safe value with the highest objective."""
        return self.safe[0]

    @property
    def rival(self) -> Value:
        """What the base is compared with: the best value, or the next fastest if it is the base."""
        if self.best is not self.base:
            return self.best
        return self._ranked(self.values[1:])[0]

    def gain(self, value: Value) -> float:
        """The objective of a value, over that of the base."""
        return float(getattr(value, f"{self.objective}_gain"))

    @property
    def verdict(self) -> str:
        """What came out, in words."""
        measure = OBJECTIVES[self.objective]
        lost = f"no more than {points(self.allowed_loss)} of score lost"
        if self.best is self.base:
            return (
                f"{self.field} {self.base.value}, the base: no other value has a higher {measure} "
                f"at {lost}"
            )
        return f"{self.field} {self.best.value}: highest {measure} at {lost}"

    def _ranked(self, values: Iterable[Value]) -> list[Value]:
        return sorted(values, key=lambda item: -float(getattr(item.overall, self.objective)))

    def to_json(self) -> dict[str, Any]:
        """Content of sweep.json."""
        return {
            "field": self.field,
            "base": self.base.value,
            "best": self.best.value,
            "allowed_loss": self.allowed_loss,
            "objective": self.objective,
            "values": [
                {
                    "value": item.value,
                    "score_change": round(item.score_change, 4),
                    "tpf_gain": round(item.tpf_gain, 4),
                    "useful_tpf_gain": round(item.useful_tpf_gain, 4),
                    "speed_up": {k: round(v, 4) for k, v in asdict(item.speed_up).items()},
                    "tasks": {name: totals.to_json() for name, totals in item.totals.items()},
                }
                for item in self.values
            ],
        }


def sweep_variants(field: str, values: Sequence[Any], options: DecodeOptions) -> list[Variant]:
    """One variant per value of a setting, the base first; raises LopaError."""
    if len(values) < 2:
        raise LopaError(f"--sweep {field}: give at least two values")
    if field == "lookahead":
        if options.strategy not in LOOKAHEADS:
            raise LopaError(
                f"--sweep {field}: strategy {options.strategy} has no lookahead; use "
                f"--strategy lopa --base {options.strategy}"
            )
        values = sorted(values)  # 0, the base strategy alone, comes first where it is given
    return [Variant(value, options.replace(**{field: value})) for value in values]


def compare(
    field: str,
    values: Sequence[Any],
    samples: Sequence[Sample],
    labels: Sequence[str],
    allowed_loss: float = ALLOWED_LOSS,
    objective: str = "tpf",
) -> Sweep:
    """Compare every value with the first one."""
    by_value = {value: [s for s in samples if s.variant == value] for value in values}
    base_samples = {(s.task, s.id): s for s in by_value[values[0]]}
    base_totals = totals_by_task(base_samples.values(), labels)
    compared = tuple(
        _compare(value, by_value[value], base_samples, overall(base_totals), labels)
        for value in values
    )
    return Sweep(field, compared, allowed_loss, objective)


def points(count: float) -> str:
    """A count of points of score, in words."""
    return f"{count:g} {'point' if count == 1 else 'points'}"


def _compare(
    value: Any,
    samples: Sequence[Sample],
    base_samples: Mapping[tuple[str, str], Sample],
    base: Totals,
    labels: Sequence[str],
) -> Value:
    totals = totals_by_task(samples, labels)
    found = overall(totals)
    ratios = [
        base_samples[sample.task, sample.id].seconds / sample.seconds
        for sample in samples
        if sample.seconds
    ]
    return Value(
        value,
        totals,
        found.score - base.score,
        found.tpf / base.tpf if base.tpf else 0.0,
        found.useful_tpf / base.useful_tpf if base.useful_tpf else 0.0,
        _spread(ratios),
    )


def _spread(ratios: Sequence[float]) -> SpeedUp:
    if len(ratios) < 2:
        only = ratios[0] if ratios else 0.0
        return SpeedUp(only, only, only)
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return SpeedUp(median, low, high)


def value_table(sweep: Sweep) -> list[tuple[str, ...]]:
    """One row per value, over all tasks."""
    head = (
        sweep.field, "correct", "score %", "change", "TPF", "useful TPF", "TPF gain",
        "rows/token", "rows/step", "tokens/s", "speed-up (quartiles)",
    )  # fmt: skip
    rows = [
        (
            str(item.value),
            f"{item.overall.correct}/{item.overall.problems}",
            f"{item.overall.score:.1f}",
            f"{item.score_change:+.1f}",
            f"{item.overall.tpf:.2f}",
            f"{item.overall.useful_tpf:.2f}",
            f"{item.tpf_gain:.2f}x",
            f"{item.overall.rows_per_token:.1f}",
            f"{item.overall.rows_per_step:.0f}",
            f"{item.overall.tokens_per_second:.0f}",
            f"{item.speed_up.median:.2f}x ({item.speed_up.low:.2f}-{item.speed_up.high:.2f})",
        )
        for item in sweep.values
    ]
    return [head, *rows]


def task_table(sweep: Sweep) -> list[tuple[str, ...]]:
    """One row per task: the base against its rival, as the paper's tables have it."""
    base, rival = sweep.base.value, sweep.rival.value
    head = (
        "task", f"TPF at {base}", f"TPF at {rival}", "TPF gain", "useful TPF gain",
        f"score at {base}", f"score at {rival}", "change",
    )  # fmt: skip
    rows = []
    for name, before in sweep.base.totals.items():
        after = sweep.rival.totals[name]
        rows.append(
            (
                name,
                f"{before.tpf:.2f}",
                f"{after.tpf:.2f}",
                f"{after.tpf / before.tpf if before.tpf else 0:.2f}x",
                f"{after.useful_tpf / before.useful_tpf if before.useful_tpf else 0:.2f}x",
                f"{before.score:.1f}",
                f"{after.score:.1f}",
                f"{after.score - before.score:+.1f}",
            )
        )
    return [head, *rows]
