"""Lookahead Parallel Decoding: several branches per forward, the most promising is committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..branches import Branch
from ..manifest import BundleManifest
from ..sampling import Predictions
from ..scoring import BranchScore
from ..setting import MAX_COUNT, setting, share

SHAPES = ("single", "nested")
DEFAULT_LOOKAHEAD = 4
UNCONFIRMED = -1.0


@dataclass(frozen=True)
class LookaheadSettings:
    """Settings of `Lookahead`."""

    lookahead: int | None = setting(
        None,
        "lookahead branches; 0 runs the base strategy alone",
        shown=f"what the bundle has, at most {DEFAULT_LOOKAHEAD}",
        least=0,
        most=MAX_COUNT,
    )
    lookahead_shape: str = setting(
        "single",
        "what each adds to the anchor: one position as published, or more and more positions, of "
        "which the one with the most confirmed tokens wins",
        choices=SHAPES,
    )
    confirm: float = share(
        0.5,
        "least probability in the view of a smaller branch that confirms a token",
        needs={"lookahead_shape": ("nested",)},
    )
    anchor_wins: bool = setting(
        False, "an ablation: score the branches but always commit the anchor"
    )

    def faults(self, manifest: BundleManifest) -> list[str]:
        """List what the bundle cannot serve."""
        widest = widest_lookahead(manifest)
        if self.lookahead is None or self.lookahead <= widest:
            return []
        return [
            f"lookahead is {self.lookahead}, the bundle has {widest} lookahead branches; "
            f"build with --lookahead {self.lookahead} for more"
        ]

    def rules(self, score: BranchScore, manifest: BundleManifest) -> Lookahead:
        """Build the rules in force for a bundle."""
        branches = self.lookahead
        if branches is None:
            branches = min(DEFAULT_LOOKAHEAD, widest_lookahead(manifest))
        return Lookahead(branches, score, self.anchor_wins, self.lookahead_shape, self.confirm)


def widest_lookahead(manifest: BundleManifest) -> int:
    """The most lookahead branches that an instance of the bundle holds."""
    return max(instance.branches for instance in manifest.instances) - 1


@dataclass(frozen=True)
class Lookahead:
    """Spawns up to `branches` lookahead branches beside the anchor and picks the winner.

    Shape "single" (LoPA paper): each lookahead is the anchor plus one of its next most confident
    unfilled positions, and the highest branch score wins. Shape "nested": lookahead j is the anchor
    plus its n_j next most confident positions, n_j growing geometrically up to all of them, and the
    one with the most confirmed tokens wins (`confirmed_tokens`). With 0 branches the base strategy
    runs alone.
    """

    branches: int
    score: BranchScore
    anchor_wins: bool = False  # ablation: score the branches but always commit the anchor
    shape: str = "single"
    confirm: float = 0.5  # least probability that confirms a token of a nested branch

    def extras(self, branch: Branch, predictions: Predictions, room: int) -> list[list[int]]:
        """For each lookahead, indices into `predictions` of the at most `room` positions it fills.

        `branch` is the winner after its fill; the surest position comes first, ties go to the lower
        one. Only positions that the base strategy let the last forward predict are candidates.
        """
        open_positions = np.flatnonzero(branch.masked[predictions.positions])
        if not self.branches or not room or not len(open_positions):
            return []
        order = np.argsort(-predictions.confidence[open_positions], kind="stable")
        surest: list[int] = open_positions[order].tolist()
        if self.shape == "single":
            return [[index] for index in surest[: self.branches]]
        sizes = nested_sizes(min(room, len(surest)), self.branches)
        return [surest[:size] for size in sizes]

    def scores(
        self, branches: Sequence[Branch], predictions: Sequence[Predictions], vocab_size: int
    ) -> tuple[float, ...]:
        """Score the branches of one forward from their predictions; higher is better."""
        if self.shape == "nested":
            return confirmed_tokens(branches, predictions, self.confirm)
        return tuple(
            self.score(branch, predicted, vocab_size)
            for branch, predicted in zip(branches, predictions, strict=True)
        )

    def near_confirm(
        self, branches: Sequence[Branch], predictions: Sequence[Predictions], margin: float
    ) -> bool:
        """Whether a change of `margin` in `confirm` would change what is confirmed."""
        if self.shape != "nested":
            return False
        lower, higher = (
            confirmed_tokens(branches, predictions, self.confirm + change)
            for change in (-margin, margin)
        )
        return lower != higher

    def choose(self, scores: Sequence[float]) -> int:
        """Index of the winner; branches are in forward order (lookaheads, anchor last).

        Ties go to the earlier branch.
        """
        if self.anchor_wins:
            return len(scores) - 1
        return int(np.argmax(scores))


def nested_sizes(most: int, branches: int) -> list[int]:
    """At most `branches` different sizes from 1 to `most`, evenly spaced in their logarithm."""
    return sorted({round(most ** (number / branches)) for number in range(1, branches + 1)})


def confirmed_tokens(
    branches: Sequence[Branch], predictions: Sequence[Predictions], least: float
) -> tuple[float, ...]:
    """Number of extra tokens of each branch if they are confirmed, else UNCONFIRMED; anchor 0.

    A branch is confirmed if, in the view of the anchor or of a smaller confirmed branch, every
    token that it has beyond that one is the predicted token with a probability of `least` or more.
    So a confirmed branch holds what the smaller ones would fill in later forwards with `least` as
    their threshold. Branches are in forward order: lookaheads by growing size, anchor last.
    """
    found = [UNCONFIRMED] * (len(branches) - 1) + [0.0]
    views = [(set(branches[-1].extras), _sure_tokens(predictions[-1], least))]
    for index, branch in enumerate(branches[:-1]):
        extras = set(branch.extras)
        if any(extras - filled <= sure for filled, sure in views):
            found[index] = float(len(extras))
            views.append((extras, _sure_tokens(predictions[index], least)))
    return tuple(found)


def _sure_tokens(predictions: Predictions, least: float) -> set[tuple[int, int]]:
    """The (position, token) pairs predicted with a probability of `least` or more."""
    sure = predictions.probability >= least
    positions, tokens = predictions.positions[sure], predictions.token_ids[sure]
    return set(zip(positions.tolist(), tokens.tolist(), strict=True))
