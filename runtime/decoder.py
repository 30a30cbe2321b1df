"""The step loop shared by every strategy: advance, pack, run, score, commit the winner, fill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from .blocks import cached_end
from .branches import (
    Branch,
    HeadRows,
    Window,
    flat_head_rows,
    layout_of,
    next_layouts,
    plan_head_rows,
    write_layout,
    write_tokens,
)
from .contract import Instance, LopaError, smallest_fit
from .engines.protocol import DecodeState, StagingState, StepOutputs, TwoPrecisionState
from .manifest import ModelInfo
from .precision import PrecisionPolicy
from .sampling import HeadRow, Predictions, Sampler, head_row
from .strategies.lopa import Lookahead
from .strategies.protocol import Fill, Strategy

FULL = PrecisionPolicy()


@dataclass(frozen=True)
class StepEvent:
    """What one step did. `tokens` and `masked` are views, valid until the next step; the last
    event of a decode keeps its own.

    Branches are in forward order: lookaheads by descending confidence, the anchor last.
    """

    step: int  # counted from 1
    winner: int
    scores: tuple[float, ...]
    confidences: tuple[float, ...]  # mean over the extra tokens of each branch, 1 for the anchor
    extras: tuple[Fill, ...]  # what the winning lookahead had added, surest first
    filled: tuple[Fill, ...]  # set on the winner by this step
    cached: int  # cache slots in use before the step
    committed: int  # positions written to the cache by the step
    window: int  # rows of the longest branch
    shape: Instance  # what the engine ran, padding included
    tokens: NDArray[np.int32]
    masked: NDArray[np.bool_]
    guesses: Predictions  # of the winner, made before the fill; some of its positions are filled
    precision: str  # "full", "fast", or "both": run fast, then again in full
    limited: bool  # a block was due but no instance could hold it

    @property
    def anchor_won(self) -> bool:
        """Whether the normal result was committed."""
        return self.winner == len(self.scores) - 1

    def kept(self, limited: bool) -> StepEvent:
        """The event with tokens of its own, and whether the decode ended for lack of room."""
        tokens, masked = self.tokens.copy(), self.masked.copy()
        return replace(self, tokens=tokens, masked=masked, limited=limited)


@dataclass(frozen=True)
class _Run:
    """A packed step: its branches in forward order, what it computes, and the saved row."""

    live: list[Branch]
    window: Window
    shape: Instance
    plans: list[HeadRows]
    saved: HeadRow | None


@dataclass(frozen=True)
class _Outcome:
    """What a run says of all branches: scores and predictions."""

    outputs: StepOutputs
    scores: tuple[float, ...]
    winner: int
    predictions: list[Predictions]

    @property
    def predicted(self) -> Predictions:
        """Those of the winner."""
        return self.predictions[self.winner]


class Decoder:
    """Decodes one prompt after the other with one state, strategy and lookahead setting."""

    def __init__(
        self,
        state: DecodeState,
        model: ModelInfo,
        strategy: Strategy,
        lookahead: Lookahead,
        sampler: Sampler,
        precision: PrecisionPolicy = FULL,
        strict: bool = False,
    ) -> None:
        self.state, self.model = state, model
        self.strategy, self.lookahead, self.sampler = strategy, lookahead, sampler
        self.precision, self.strict = precision, strict
        self._staging = state if isinstance(state, StagingState) else None
        sizes = sorted({instance.branches for instance in state.instances})
        self._counts = [size for size in sizes if size - 1 < lookahead.branches] + [
            lookahead.branches + 1
        ]
        self._context = max(instance.context for instance in state.instances)
        # One token more than slots: the store of the last block may predict the one behind it.
        self._pool = [
            Branch(self._context + 1, model.mask_token_id)
            for _ in range(2 * lookahead.branches + 2)
        ]

    def steps(self, prompt: Sequence[int], seed: int = 0) -> Iterator[StepEvent]:
        """Decode `prompt`, yielding one event per engine run."""
        generator = np.random.default_rng(seed)
        self.state.reset()
        free = list(self._pool)
        anchor = free.pop()
        self.strategy.begin(anchor, prompt)
        lookaheads: list[Branch] = []
        saved: HeadRow | None = None
        event: StepEvent | None = None
        step = 0
        while True:
            branches = [*lookaheads, anchor]
            fits = [self._advance(branch, len(branches)) for branch in branches]
            live = [branch for branch in branches if not self.strategy.finished(branch)]
            if not live:  # only now is it known whether a block after the last has room
                if event is not None:
                    yield event.kept(event.limited or not all(fits))
                return
            if event is not None:
                yield event
            window = self.strategy.window(live)
            shape, plans = self._pack(live, window)
            if self._staging is not None:
                self._staging.while_running(partial(self._stage, live, window, shape))
            run = _Run(live, window, shape, plans, saved)
            outcome, precision = self._run(run, generator)
            scores, winner, predicted = outcome.scores, outcome.winner, outcome.predicted
            anchor = live[winner]
            saved = self._commit(window, winner, shape, plans[winner], outcome.outputs, saved)
            extras, confidences = anchor.extras, tuple(branch.confidence for branch in live)
            filled = self._fill(anchor, predicted)
            self.strategy.settle(anchor, window)
            step += 1
            event = StepEvent(
                step=step,
                winner=winner,
                scores=scores,
                confidences=confidences,
                extras=extras,
                filled=tuple(filled),
                cached=window.cached,
                committed=window.commits,
                window=window.width(live),
                shape=shape,
                tokens=anchor.tokens[: anchor.length],
                masked=anchor.masked[: anchor.length],
                guesses=predicted,
                limited=not all(fits),
                precision=precision,
            )
            free += [branch for branch in branches if branch is not anchor]
            lookaheads = self._spawn(anchor, predicted, free)

    def _advance(self, branch: Branch, count: int) -> bool:
        """Let the strategy add blocks where the widest instance for `count` branches allows."""
        width = max((i.window for i in self.state.instances if i.branches >= count), default=0)
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
        shape = self.state.shape_for(step)
        layout, inputs = layout_of(live, window), None
        if self._staging is not None:
            layout = layout.padded(shape.branches)
            inputs = self._staging.staged(shape, layout)
        if inputs is None:
            inputs = self.state.inputs(shape)
            write_layout(inputs, layout)
        write_tokens(inputs, live, window)
        inputs.head_rows[count:] = 0
        inputs.head_rows[:count] = flat_head_rows(plans, shape.window)
        inputs.temperature[:] = self.sampler.engine_temperature
        return shape, plans

    def _run(self, run: _Run, generator: np.random.Generator) -> tuple[_Outcome, str]:
        """Run the packed step in the precision of the policy; also returns which it was."""
        if not self.precision.explores(run.window):
            return self._judge(run, self.state.run(run.shape), generator), "full"
        assert isinstance(self.state, TwoPrecisionState)
        before = generator.bit_generator.state
        outcome = self._judge(run, self.state.run_fast(run.shape), generator)
        if not self._doubts(run, outcome):
            return outcome, "fast"
        generator.bit_generator.state = before
        return self._judge(run, self.state.run(run.shape), generator), "both"

    def _doubts(self, run: _Run, outcome: _Outcome) -> bool:
        """Whether rounding could have decided a fast step, which is then run again in full."""
        policy = self.precision
        if policy.doubts(outcome.scores, outcome.winner, outcome.predicted):
            return True
        return policy.doubtful and self.lookahead.near_confirm(
            run.live, outcome.predictions, policy.precision_margin
        )

    def _judge(self, run: _Run, outputs: StepOutputs, generator: np.random.Generator) -> _Outcome:
        """Predict every branch's masks, score the branches and choose the winner."""
        predictions = [
            self.sampler.predict(
                plan.positions[: plan.masks], outputs, plan.rows[: plan.masks], run.saved, generator
            )
            for plan in run.plans
        ]
        scores = self.lookahead.scores(run.live, predictions, self.model.vocab_size)
        return _Outcome(outputs, scores, self.lookahead.choose(scores), predictions)

    def _stage(self, live: list[Branch], window: Window, shape: Instance) -> None:
        """Write the layouts that the next step may have while the engine runs this one.

        A wrong guess costs nothing: the step then writes its layout itself.
        """
        assert self._staging is not None
        for layout, width in next_layouts(live, window):
            for count in self._counts:
                step = Instance(count, width, max(shape.context, layout.slots[1], 1), 1)
                likely = smallest_fit(self.state.instances, step)
                if likely is None:
                    continue
                padded = layout.padded(likely.branches)
                inputs = self._staging.stage(likely, padded)
                if inputs is not None:
                    write_layout(inputs, padded)

    def _commit(
        self,
        window: Window,
        winner: int,
        shape: Instance,
        plan: HeadRows,
        outputs: StepOutputs,
        saved: HeadRow | None,
    ) -> HeadRow | None:
        """Write the winner's rows to the cache.

        Returns the row that predicts the position behind them; None where no later step needs it.
        """
        if not window.commits:
            return saved
        rows = winner * shape.window + np.arange(window.commits)
        self.state.commit(rows, np.arange(window.start, window.commit_end))
        if not (self.model.logit_shift and window.keeps_row):
            return None
        found = np.flatnonzero(plan.positions == window.commit_end)
        return head_row(outputs, int(plan.rows[found[0]])) if len(found) else None

    def _fill(self, anchor: Branch, predicted: Predictions) -> list[Fill]:
        filled = self.strategy.fill(anchor, predicted)
        for position, token in filled:
            anchor.fill(position, token, self.model.pad_token_id)
        anchor.extras, anchor.confidence, anchor.reward = (), 1.0, 1.0
        if filled:
            chosen = np.isin(predicted.positions, [position for position, _ in filled])
            anchor.reward = float(predicted.probability[chosen].mean())
        return filled

    def _spawn(self, anchor: Branch, predicted: Predictions, free: list[Branch]) -> list[Branch]:
        """Copy the anchor once per lookahead and fill its extra tokens, most confident first."""
        lookaheads = []
        room = self.strategy.lookahead_room(anchor)
        for extras in self.lookahead.extras(anchor, predicted, room):
            branch = free.pop()
            branch.copy_from(anchor)
            positions, tokens = predicted.positions[extras], predicted.token_ids[extras]
            branch.extras = tuple(zip(positions.tolist(), tokens.tolist(), strict=True))
            for position, token in branch.extras:
                branch.fill(position, token, self.model.pad_token_id)
            branch.confidence = float(predicted.confidence[extras].mean())
            branch.reward = (anchor.reward + float(predicted.probability[extras].mean())) / 2
            lookaheads.append(branch)
        return lookaheads
