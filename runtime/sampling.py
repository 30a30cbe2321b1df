"""From head outputs to one chosen token per masked position, with its confidence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .contract import LopaError
from .engines.protocol import StepOutputs
from .manifest import BundleManifest
from .setting import count, setting

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 1e3  # beyond, float32 logits say nothing
CONFIDENCE_MEASURES = ("probability", "margin", "entropy")


@dataclass(frozen=True)
class HeadRow:
    """Candidates of one position: ids [K], log-probabilities [K], entropy in nats."""

    token_ids: NDArray[np.int32]
    log_probs: NDArray[np.float32]
    entropy: float


@dataclass(frozen=True)
class Predictions:
    """What the model says about the masked positions of one branch, in position order.

    `probability` is that of the chosen token; `confidence` is the measure that ranks positions
    (the probability itself, the margin p1 - p2, or the negative entropy). All arrays are [n].
    """

    positions: NDArray[np.intp]
    token_ids: NDArray[np.int32]
    probability: NDArray[np.float32]
    confidence: NDArray[np.float32]
    entropy: NDArray[np.float32]


@dataclass(frozen=True)
class Sampler:
    """How a token is chosen from the K candidates of a position.

    Temperature 0 takes the first candidate. Otherwise the engine has divided the logits by the
    temperature; top-k and top-p then cut the candidates, their probabilities are renormalised, and
    one is drawn. Without a cut, confidences and entropy are those of the full vocabulary.
    """

    temperature: float = setting(
        0.0,
        "0 takes the likeliest token",
        least=0,
        most=MAX_TEMPERATURE,
    )
    top_k: int | None = count(None, "sample from the likeliest candidates", shown="all")
    top_p: float | None = setting(
        None,
        "sample from the likeliest candidates that hold this share of the probability",
        shown="all",
        above=0,
        most=1,
    )
    measure: str = setting("probability", "what ranks positions", choices=CONFIDENCE_MEASURES)
    seed: int = setting(0, "of the sampling", least=0, compare=False)

    def faults(self, manifest: BundleManifest) -> list[str]:
        """List settings that make no sense for what an engine keeps per row."""
        found, candidates = [], manifest.model.candidates
        if 0 < self.temperature < MIN_TEMPERATURE:
            found.append(
                f"temperature is {self.temperature}, expected 0 or a value from "
                f"{MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}"
            )
        if self.top_k is not None and self.top_k > candidates:
            found.append(
                f"top k is {self.top_k}, the bundle keeps {candidates} candidates per position "
                "(export with --candidates)"
            )
        if self.measure == "margin" and candidates < 2:
            found.append("measure 'margin' needs a bundle that keeps at least 2 candidates")
        return found

    @property
    def engine_temperature(self) -> float:
        """The value of the engine's `temperature` input."""
        return self.temperature or 1.0

    def predict(
        self,
        positions: NDArray[np.intp],
        outputs: StepOutputs,
        rows: NDArray[np.intp],
        saved: HeadRow | None,
        generator: np.random.Generator,
    ) -> Predictions:
        """Choose a token for each of `positions` from head rows `rows` (-1 = `saved`)."""
        token_ids = outputs.token_ids[rows]
        log_probs = outputs.log_probs[rows]
        entropy = outputs.entropy[rows]
        for index in np.flatnonzero(rows < 0):
            if saved is None:
                raise LopaError(f"no saved head row for position {positions[index]}")
            token_ids[index], log_probs[index] = saved.token_ids, saved.log_probs
            entropy[index] = saved.entropy
        probabilities = np.exp(log_probs)
        if self.top_k is not None or self.top_p is not None:
            probabilities = self._cut(probabilities)
            entropy = -(probabilities * np.log(np.maximum(probabilities, 1e-10))).sum(axis=1)
        chosen = np.zeros(len(positions), np.intp)
        if self.temperature > 0 and len(positions):
            cumulative = np.cumsum(probabilities, axis=1)
            draws = generator.random(len(positions))[:, None] * cumulative[:, -1:]
            chosen = np.minimum((cumulative <= draws).sum(axis=1), probabilities.shape[1] - 1)
        each = np.arange(len(positions))
        probability = probabilities[each, chosen]
        return Predictions(
            positions,
            token_ids[each, chosen],
            probability,
            self._confidence(probabilities, probability, entropy),
            entropy,
        )

    def _cut(self, probabilities: NDArray[np.float32]) -> NDArray[np.float32]:
        kept = probabilities.copy()
        if self.top_k is not None:
            kept[:, self.top_k :] = 0
        if self.top_p is not None:
            over = np.cumsum(kept, axis=1) - kept >= self.top_p
            over[:, 0] = False  # the first candidate always stays
            kept[over] = 0
        total: NDArray[np.float32] = kept.sum(axis=1, keepdims=True)
        return kept / total

    def _confidence(
        self,
        probabilities: NDArray[np.float32],
        probability: NDArray[np.float32],
        entropy: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        if self.measure == "margin":
            return probabilities[:, 0] - probabilities[:, 1]
        if self.measure == "entropy":
            return -entropy
        return probability


def head_row(outputs: StepOutputs, row: int) -> HeadRow:
    """Copy one head row, to be kept beyond the next run."""
    return HeadRow(
        outputs.token_ids[row].copy(), outputs.log_probs[row].copy(), float(outputs.entropy[row])
    )
