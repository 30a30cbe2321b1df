"""The step loop shared by every strategy: advance, pack, run, score, commit the winner, fill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .blocks import cached_end
from .branches import Branch, HeadRows, Window, flat_head_rows, pack_inputs, plan_head_rows
from .contract import Instance, LopaError
from .engines.protocol import Engine, StepOutputs
from .manifest import ModelInfo
from .sampling import HeadRow, Predictions, Sampler, head_row
from .strategies.lopa import Lookahead
from .strategies.protocol import Fill, Strategy


@dataclass(frozen=True)
class StepEvent:
    """What one step did. `tokens` and `masked` are views, valid until the next step.

    Branches are in forward order: lookaheads by descending confidence, the anchor last.
    """

    step: int  # counted from 1
    winner: int
    scores: tuple[float, ...]
    confidences: tuple[float, ...]  # of the extra token of each branch, 1 for the anchor
    extra: Fill | None  # the token that the winning lookahead had added
    filled: tuple[Fill, ...]  # set on the winner by this step
    cached: int  # cache slots in use before the step
    committed: int  # positions written to the cache by the step
    window: int  # rows of the longest branch
    shape: Instance  # what the engine ran, padding included
    tokens: NDArray[np.int32]
    masked: NDArray[np.bool_]
    guesses: Predictions  # of the winner, made before the fill; some of its positions are filled
    limited: bool  # a block was due but no instance could hold it

    @property
    def anchor_won(self) -> bool:
        """Whether the normal result was committed."""
        return self.winner == len(self.scores) - 1


class Decoder:
    """Decodes one prompt after the other with one engine, strategy and lookahead setting."""

    def __init__(
        self,
        engine: Engine,
        model: ModelInfo,
        strategy: Strategy,
        lookahead: Lookahead,
        sampler: Sampler,
        strict: bool = False,
    ) -> None:
        self.engine, self.model = engine, model
        self.strategy, self.lookahead, self.sampler = strategy, lookahead, sampler
        self.strict = strict
        self._context = max(instance.context for instance in engine.instances)
        self._pool = [
            Branch(self._context, model.mask_token_id) for _ in range(2 * lookahead.branches + 2)
        ]

    def steps(self, prompt: Sequence[int], seed: int = 0) -> Iterator[StepEvent]:
        """Decode `prompt`, yielding one event per engine run."""
        generator = np.random.default_rng(seed)
        self.engine.reset()
        free = list(self._pool)
        anchor = free.pop()
        self.strategy.begin(anchor, prompt)
        lookaheads: list[Branch] = []
        saved: HeadRow | None = None
        step = 0
        while True:
            branches = [*lookaheads, anchor]
            fits = [self._advance(branch, len(branches)) for branch in branches]
            live = [branch for branch in branches if not self.strategy.finished(branch)]
            if not live:
                return
            window = self.strategy.window(live)
            shape, plans = self._pack(live, window)
            outputs = self.engine.run(shape)
            predictions = [
                self.sampler.predict(
                    plan.positions[: plan.masks], outputs, plan.rows[: plan.masks], saved, generator
                )
                for plan in plans
            ]
            scores = [
                self.lookahead.score(branch, predicted, self.model.vocab_size)
                for branch, predicted in zip(live, predictions, strict=True)
            ]
            winner = self.lookahead.choose(scores)
            anchor, predicted = live[winner], predictions[winner]
            saved = self._commit(window, winner, shape, plans[winner], outputs, saved)
            extra, confidences = anchor.extra, tuple(branch.confidence for branch in live)
            filled = self._fill(anchor, predicted)
            self.strategy.settle(anchor, window)
            step += 1
            yield StepEvent(
                step=step,
                winner=winner,
                scores=tuple(scores),
                confidences=confidences,
                extra=extra,
                filled=tuple(filled),
                cached=window.cached,
                committed=window.commits,
                window=window.width(live),
                shape=shape,
                tokens=anchor.tokens[: anchor.length],
                masked=anchor.masked[: anchor.length],
                guesses=predicted,
                limited=not all(fits),
            )
            free += [branch for branch in branches if branch is not anchor]
            lookaheads = []
            if self.strategy.branches_out(anchor):
                lookaheads = self._spawn(anchor, predicted, free)

    def _advance(self, branch: Branch, count: int) -> bool:
        """Let the strategy add blocks where the widest instance for `count` branches allows."""
        width = max((i.window for i in self.engine.instances if i.branches >= count), default=0)
        room = min(width, self._context - cached_end(branch.blocks))
        fits = self.strategy.advance(branch, room)
        if not fits and self.strict:
            raise LopaError(
                f"the next block does not fit: {count} branches have room for {room} window rows; "
                "build the bundle with a larger --window or decode without --strict"
            )
        return fits

    def _pack(self, live: list[Branch], window: Window) -> tuple[Instance, list[HeadRows]]:
        plans = plan_head_rows(live, window, self.model.logit_shift)
        count = sum(int((plan.offsets >= 0).sum()) for plan in plans)
        step = Instance(len(live), window.width(live), window.context, max(count, 1))
        shape = self.engine.shape_for(step)
        inputs = self.engine.inputs(shape)
        pack_inputs(inputs, live, window)
        inputs.head_rows[count:] = 0
        inputs.head_rows[:count] = flat_head_rows(plans, shape.window)
        inputs.temperature[:] = self.sampler.engine_temperature
        return shape, plans

    def _commit(
        self,
        window: Window,
        winner: int,
        shape: Instance,
        plan: HeadRows,
        outputs: StepOutputs,
        saved: HeadRow | None,
    ) -> HeadRow | None:
        """Write the winner's rows to the cache; return the row that predicts the next position."""
        if not window.commits:
            return saved
        rows = winner * shape.window + np.arange(window.commits)
        self.engine.commit(rows, np.arange(window.start, window.commit_end))
        if not (self.model.logit_shift and window.keeps_row):
            return None
        index = int(np.flatnonzero(plan.positions == window.commit_end)[0])
        return head_row(outputs, int(plan.rows[index]))

    def _fill(self, anchor: Branch, predicted: Predictions) -> list[Fill]:
        filled = self.strategy.fill(anchor, predicted)
        for position, token in filled:
            anchor.fill(position, token, self.model.pad_token_id)
        anchor.extra, anchor.confidence, anchor.reward = None, 1.0, 1.0
        if filled:
            chosen = np.isin(predicted.positions, [position for position, _ in filled])
            anchor.reward = float(predicted.probability[chosen].mean())
        return filled

    def _spawn(self, anchor: Branch, predicted: Predictions, free: list[Branch]) -> list[Branch]:
        """Copy the anchor once per extra token, most confident first."""
        lookaheads = []
        for index in self.lookahead.extras(anchor, predicted):
            branch = free.pop()
            branch.copy_from(anchor)
            position, token = int(predicted.positions[index]), int(predicted.token_ids[index])
            branch.fill(position, token, self.model.pad_token_id)
            branch.extra = (position, token)
            branch.confidence = float(predicted.confidence[index])
            branch.reward = (anchor.reward + float(predicted.probability[index])) / 2
            lookaheads.append(branch)
        return lookaheads
