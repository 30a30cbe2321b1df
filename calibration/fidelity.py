"""How far a graph's predictions on recorded steps are from those of the model it came from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .states import Feeds, asked_rows

CONFIDENT = 0.9  # the default threshold above which a step fills a position


@dataclass(frozen=True)
class Predicted:
    """Head outputs of one step at the rows that differ: tokens [R, K] and log-probabilities."""

    token_ids: NDArray[np.int32]
    log_probs: NDArray[np.float32]


@dataclass(frozen=True)
class Fidelity:
    """Agreement with the reference over all rows.

    `agreement`: share of rows with the same likeliest token; `decisions`: with the same token and
    on the same side of the default confidence threshold; `drift`: mean change of the reference
    token's log-probability (nats; tokens that are no candidate any more count as the last one).
    """

    rows: int
    agreement: float
    decisions: float
    drift: float


def predict(session: Any, feeds: Feeds) -> Predicted:
    """Run one step."""
    token_ids, log_probs = session.run(["token_ids", "log_probs"], feeds)
    asked = asked_rows(feeds)
    return Predicted(token_ids[asked], log_probs[asked])


def compare(
    session: Any,
    states: Iterable[Feeds],
    references: Iterable[Predicted],
) -> Fidelity:
    """Run a session on steps and compare it with what the model predicted there."""
    rows = same = decided = 0
    drift = 0.0
    for feeds, reference in zip(states, references, strict=True):
        found = predict(session, feeds)
        token = reference.token_ids[:, :1]
        equal = found.token_ids[:, 0] == token[:, 0]
        sure = np.exp(found.log_probs[:, 0]) > CONFIDENT
        was_sure = np.exp(reference.log_probs[:, 0]) > CONFIDENT
        among = found.token_ids == token
        column = np.where(among.any(1), among.argmax(1), found.token_ids.shape[1] - 1)
        moved = np.take_along_axis(found.log_probs, column[:, None], 1)[:, 0]
        rows += len(token)
        same += int(equal.sum())
        decided += int((equal & (sure == was_sure)).sum())
        drift += float(np.abs(moved - reference.log_probs[:, 0]).sum())
    return Fidelity(rows, same / rows, decided / rows, drift / rows)


def same_tokens(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> tuple[float, float]:
    """Share of places with the same token over pairs of answers, and its standard error.

    What one answer has and the other lacks is different.
    """
    same = [sum(one == two for one, two in zip(*pair, strict=False)) for pair in pairs]
    longest = [max(map(len, pair)) for pair in pairs]
    total = sum(longest)
    if not total:
        return 1.0, 0.0
    share = sum(same) / total
    rests = (found - share * size for found, size in zip(same, longest, strict=True))
    return share, math.sqrt(sum(rest * rest for rest in rests)) / total
