"""How far the predictions of two engines agree at masked positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_LEAST = 1e-12  # of a probability, so that its logarithm is finite


@dataclass(frozen=True)
class Agreement:
    """Predictions at masked positions of all steps; probabilities are in [0, 1], KL in nats.

    `drift` is how far the confidence moved: probability of the first candidate, B less A. KL(A, B)
    is over the candidates that both keep, everything else counted as one: the engines keep no more,
    so it is a lower bound.
    """

    positions: int
    top1: float  # share with the same first candidate
    candidates: float  # share of A's candidates that B keeps too
    drift_mean: float  # of the absolute drift
    drift_max: float
    drift_signed: float
    kl_mean: float
    kl_max: float


@dataclass(frozen=True)
class _Rows:
    same: Array  # bool [n]
    kept: Array  # [n]
    drift: Array  # [n]
    divergence: Array  # [n]


class AgreementCount:
    """Adds up the agreement over steps, a few numbers per position."""

    def __init__(self) -> None:
        self._rows: list[_Rows] = []

    def add(self, one: Mapping[str, Array], two: Mapping[str, Array], rows: Array) -> None:
        """Count the head rows `rows` of one step's outputs, A's and B's."""
        ids = [outputs["token_ids"][rows] for outputs in (one, two)]
        logs = [outputs["log_probs"][rows].astype(np.float64) for outputs in (one, two)]
        shared = ids[0][:, :, None] == ids[1][:, None, :]
        self._rows.append(
            _Rows(
                ids[0][:, 0] == ids[1][:, 0],
                shared.any(2).mean(1),
                np.exp(logs[1][:, 0]) - np.exp(logs[0][:, 0]),
                _divergence(logs[0], logs[1], shared),
            )
        )

    def total(self) -> Agreement:
        """The agreement over everything that was added."""
        same, kept, drift, divergence = (
            np.concatenate([getattr(rows, name) for rows in self._rows] or [np.empty(0)])
            for name in ("same", "kept", "drift", "divergence")
        )
        if not len(same):
            return Agreement(0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        return Agreement(
            positions=len(same),
            top1=float(same.mean()),
            candidates=float(kept.mean()),
            drift_mean=float(np.abs(drift).mean()),
            drift_max=float(np.abs(drift).max()),
            drift_signed=float(drift.mean()),
            kl_mean=float(divergence.mean()),
            kl_max=float(divergence.max()),
        )


def _divergence(one: Array, two: Array, shared: Array) -> Array:
    """KL [n] of log-probabilities [n, K] over shared candidates [n, K, K] and the rest as one."""
    p, q = np.exp(one), np.exp(two)
    both = shared.any(2)
    matched = np.where(both, (shared * q[:, None, :]).sum(2), 1.0)
    terms = np.where(both, p * (one - np.log(np.maximum(matched, _LEAST))), 0.0).sum(1)
    rest_p = np.clip(1 - (p * both).sum(1), 0, 1)
    rest_q = np.clip(1 - np.where(both, matched, 0.0).sum(1), 0, 1)
    rest = rest_p * (np.log(np.maximum(rest_p, _LEAST)) - np.log(np.maximum(rest_q, _LEAST)))
    total: Array = np.maximum(terms + rest, 0.0)
    return total
