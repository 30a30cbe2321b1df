"""What two engines must agree in, by the precisions of the pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..arguments import amount, share

if TYPE_CHECKING:
    from .decodes import DecodesReport
    from .steps import StepsReport


@dataclass(frozen=True)
class Threshold:
    """One bound: its flag, what it bounds, whether it is a least or a most, what it may be."""

    flag: str
    title: str
    least: bool
    type: Callable[[str], float]
    help: str

    @property
    def name(self) -> str:
        """Name of the parsed argument."""
        return self.flag.removeprefix("--").replace("-", "_")


THRESHOLDS = (
    Threshold("--min-top1", "top-1 agreement", True, share, "least share of the same first tokens"),
    Threshold("--max-abs", "error of log_probs", False, amount, "largest error of log_probs, nats"),
    Threshold(
        "--max-drift", "confidence drift", False, amount, "most the confidence may move on average"
    ),
    Threshold("--max-kl", "mean KL", False, amount, "most KL on average, nats"),
    Threshold(
        "--min-token-agreement", "token agreement", True, share, "least share of the same tokens"
    ),
    Threshold(
        "--min-winner-agreement", "winner agreement", True, share, "least share of the same winners"
    ),
    Threshold(
        "--max-score-loss",
        "score loss",
        False,
        amount,
        "most points that B may lose (with --problems)",
    ),
)

# Set between what the shipped model shows and what would change its answers (docs/parity.md).
_COARSE = (0.98, 16.0, 0.02, 0.02, 0.99, 0.6, 0.5)  # quantised models, and what is not listed
PRECISIONS = {
    "fp32": (0.999, 0.01, 1e-4, 1e-5, 0.99, 0.95, 0.5),
    "fp16": (0.99, 0.5, 2e-3, 1e-3, 0.99, 0.8, 0.5),
}


@dataclass(frozen=True)
class Check:
    """A bound and what was found; NaN keeps no bound."""

    threshold: Threshold
    found: float
    expected: float

    @property
    def kept(self) -> bool:
        """Whether what was found is within the bound."""
        if self.threshold.least:
            return self.found >= self.expected
        return self.found <= self.expected

    @property
    def text(self) -> str:
        """One line: what was found, what was expected, the flag."""
        bound = "at least" if self.threshold.least else "at most"
        return (
            f"{self.threshold.title} {self.found:.6g}, expected {bound} {self.expected:g} "
            f"({self.threshold.flag})"
        )


def default_limits(precisions: Sequence[str]) -> dict[str, float]:
    """Bounds for the precisions that ran: those of the coarsest."""
    rows = [PRECISIONS.get(precision, _COARSE) for precision in precisions]
    coarsest = max(rows, key=lambda row: row[1])
    return {item.name: value for item, value in zip(THRESHOLDS, coarsest, strict=True)}


def check(
    limits: Mapping[str, float], steps: StepsReport | None, decodes: DecodesReport | None
) -> list[Check]:
    """Check every bound that the reports have something about."""
    found: dict[str, float | None] = {}
    if steps is not None:
        found |= {
            "min_top1": steps.agreement.top1,
            "max_abs": steps.outputs["log_probs"].max_abs,
            "max_drift": steps.agreement.drift_mean,
            "max_kl": steps.agreement.kl_mean,
        }
    if decodes is not None:
        found |= {
            "min_token_agreement": decodes.token_agreement,
            "min_winner_agreement": decodes.winner_agreement,
            "max_score_loss": decodes.score_loss,
        }
    return [
        Check(item, value, limits[item.name])
        for item in THRESHOLDS
        if (value := found.get(item.name)) is not None
    ]
