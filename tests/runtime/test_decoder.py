from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lopa.runtime.blocks import Block, BlockState
from lopa.runtime.branches import Branch, Window, flat_head_rows, pack_inputs, plan_head_rows
from lopa.runtime.contract import Instance
from lopa.runtime.engines.onnxruntime.state import OnnxRuntimeState
from lopa.runtime.sampling import HeadRow, Sampler
from lopa.runtime.scoring import BranchScore
from lopa.runtime.session import Session
from lopa.runtime.strategies.lopa import Lookahead

from ..export.tiny_checkpoint import MASK, PAD, TOKENIZER_SIZE

SCORE = BranchScore("mixed", 0.3, 0.6)
WIDTH = 12


def _branches(rng: np.random.Generator, count: int) -> list[Branch]:
    """Branches of one prompt that differ in what is filled, and some in length."""
    prompt = rng.integers(0, PAD, 6).tolist()
    found = []
    for _ in range(count):
        branch = Branch(64, MASK)
        branch.start(prompt)
        branch.blocks.append(Block(0, 6, 0, BlockState.TO_CACHE, complete=True))
        branch.extend(4)
        if rng.random() < 0.5:
            branch.extend(2)
        for position in branch.masked_positions():
            if rng.random() < 0.4:
                branch.fill(int(position), int(rng.integers(0, PAD)), PAD)
        branch.confidence = float(rng.random())
        found.append(branch)
    return found


def _score(
    engine: OnnxRuntimeState, branches: list[Branch], window: Window
) -> list[tuple[float, list[int], list[float]]]:
    """Score, tokens (-1 = near-tie) and probabilities of every branch, from one step."""
    plans = plan_head_rows(branches, window, shift=1)
    rows = flat_head_rows(plans, WIDTH)
    shape = engine.shape_for(Instance(len(branches), WIDTH, 1, max(len(rows), 1)))
    inputs = engine.inputs(shape)
    pack_inputs(inputs, branches, window)
    inputs.head_rows[:] = 0
    inputs.head_rows[: len(rows)] = rows
    inputs.temperature[:] = 1
    outputs = engine.run(shape)
    saved = HeadRow(outputs.token_ids[0], outputs.log_probs[0], 0.0)
    found = []
    for branch, plan in zip(branches, plans, strict=True):
        predicted = Sampler(measure="margin").predict(
            plan.positions[: plan.masks],
            outputs,
            plan.rows[: plan.masks],
            saved,
            np.random.default_rng(0),
        )
        score = SCORE(branch, predicted, 320)
        tokens = np.where(predicted.confidence > 1e-4, predicted.token_ids, -1)
        found.append((score, tokens.tolist(), predicted.probability.tolist()))
    return found


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1), st.integers(2, 5), st.booleans())
def test_the_order_of_branches_changes_no_result(
    engine: OnnxRuntimeState, seed: int, count: int, block_causal: bool
) -> None:
    """Only an exact tie is decided by the order: the earlier branch wins."""
    rng = np.random.default_rng(seed)
    engine.reset()
    branches = _branches(rng, count)
    window = Window(0, 6, block_causal)
    first = _score(engine, branches, window)
    order = rng.permutation(count)
    second = _score(engine, [branches[i] for i in order], window)
    for place, index in enumerate(order):
        assert second[place][1] == first[index][1]
        assert second[place][0] == pytest.approx(first[index][0], abs=1e-5)
        assert second[place][2] == pytest.approx(first[index][2], abs=1e-5)
    lookahead = Lookahead(count - 1, SCORE)
    scores = [score for score, _, _ in first]
    winner = lookahead.choose(scores)
    if sorted(scores)[-1] - sorted(scores)[-2] > 1e-4:
        assert order[lookahead.choose([score for score, _, _ in second])] == winner


def test_lookahead_zero_is_the_base_strategy(session: Session) -> None:
    common: dict[str, Any] = {"max_new_tokens": 32, "window_attention": "full"}
    base = session.generate(prompt_ids=[5, 6, 7], strategy="d2f", **common)
    alone = session.generate(prompt_ids=[5, 6, 7], strategy="lopa", lookahead=0, **common)
    assert (base.token_ids, base.steps) == (alone.token_ids, alone.steps)
    forced = session.generate(prompt_ids=[5, 6, 7], lookahead=4, anchor_wins=True, **common)
    assert forced.token_ids == base.token_ids
    assert forced.forwards > base.forwards


@pytest.mark.parametrize("base", ["d2f", "vanilla", "fast-dllm"])
def test_what_is_never_confirmed_changes_nothing(session: Session, base: str) -> None:
    common: dict[str, Any] = {"prompt_ids": [5, 6, 7], "max_new_tokens": 32}
    if base == "d2f":
        common["window_attention"] = "full"
    alone = session.generate(strategy=base, **common)
    nested: dict[str, Any] = {"base": base, "lookahead_shape": "nested"}
    held = session.generate(**nested, confirm=1.0, **common)
    assert (held.token_ids, held.steps) == (alone.token_ids, alone.steps)
    assert held.forwards > alone.forwards
    assert session.generate(**nested, confirm=0.0, **common).steps < alone.steps


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_nested_lookaheads_of_cached_blocks_leave_a_mask(session: Session, cache: str) -> None:
    """Every step that refreshes the cache is the anchor's alone."""
    filled: dict[int, int] = {}
    for event in session.stream(
        prompt_ids=[5, 6, 7],
        base="fast-dllm",
        cache=cache,
        lookahead_shape="nested",
        confirm=0.0,
        max_new_tokens=32,
    ):
        assert cache == "none" or not event.committed or event.anchor_won
        assert event.scores[-1] == 0
        filled.update([*event.extras, *event.filled])
        assert len(event.extras) == max(event.scores)
    assert sorted(filled) == list(range(3, 35))


def test_lookaheads_add_one_sure_token_each(session: Session) -> None:
    """Each winner's extra token is one that the step before predicted, in order of confidence."""
    before = None
    wins = 0
    for event in session.stream(prompt_ids=[5, 6, 7], lookahead=4, max_new_tokens=40):
        if not event.anchor_won:
            assert before is not None
            wins += 1
            ((position, token),) = event.extras
            assert before[0][position]
            assert before[1][position] == token
        confidences = event.confidences[:-1]
        assert list(confidences) == sorted(confidences, reverse=True)
        guesses = dict(
            zip(event.guesses.positions.tolist(), event.guesses.token_ids.tolist(), strict=True)
        )
        before = (event.masked.copy(), guesses)
    assert wins


@settings(deadline=None, max_examples=10)
@given(
    st.lists(st.integers(0, TOKENIZER_SIZE - 1), min_size=1, max_size=30),
    st.integers(0, 4),
    st.sampled_from(
        [
            {"score": "mean_confidence"},
            {"score": "bottom_fraction"},
            {"score": "mixed"},
            {"score": "reward_entropy"},
            {"lookahead_shape": "nested", "confirm": 0.0},
            {"lookahead_shape": "nested"},
        ]
    ),
    st.sampled_from(["full", "block-causal"]),
    st.sampled_from([0.2, 0.9, 1.0]),
)
def test_every_decode_ends_with_whole_blocks(
    session: Session,
    prompt: list[int],
    lookahead: int,
    judged: dict[str, Any],
    attention: str,
    sure: float,
) -> None:
    """Any prompt, also one of mask or stop tokens, under any setting."""
    last = None
    for event in session.stream(
        prompt_ids=prompt,
        lookahead=lookahead,
        window_attention=attention,
        **judged,
        confidence=sure,
        max_new_tokens=24,
    ):
        assert np.isfinite(event.scores).all()
        assert event.filled or event.committed or event.extras
        last = event
    assert last is not None
    assert not last.masked.any()
    assert last.tokens[: len(prompt)].tolist() == prompt
    added = len(last.tokens) - len(prompt)
    assert added in (8, 16, 24)
    assert not (last.tokens[len(prompt) :] == MASK).any()
    assert added == 24 or PAD in last.tokens[len(prompt) :]
