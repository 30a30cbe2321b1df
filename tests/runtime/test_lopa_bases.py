"""LoPA over every base strategy, on a real engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lopa.runtime.blocks import Block
from lopa.runtime.branches import block_causal_mask
from lopa.runtime.engines.onnxruntime.state import OnnxRuntimeState
from lopa.runtime.engines.single import SingleState
from lopa.runtime.session import Session

from ..export.tiny_checkpoint import MASK, TOKENIZER_SIZE
from .engine_steps import cache, run_step

BLOCK = 8
CASES: list[tuple[str, dict[str, Any]]] = [
    ("vanilla", {"steps": 24}),
    ("vanilla", {"block_size": BLOCK, "steps": 24, "schedule": "llada"}),
    ("fast-dllm", {"cache": "none"}),
    ("fast-dllm", {"cache": "prefix", "factor": 1.0}),
    ("fast-dllm", {"cache": "dual"}),
    ("fast-dllm", {"cache": "dual", "fill": "quota"}),
    ("block-diffusion", {"cache": "prefix"}),
    ("block-diffusion", {"cache": "prefix", "fill": "sequential"}),
    ("block-diffusion", {"cache": "dual", "small_block_size": 4}),
    ("block-diffusion", {"cache": "none"}),
]
PROMPTS = st.lists(st.integers(0, TOKENIZER_SIZE - 1), min_size=1, max_size=20)
SHIFTS = st.sampled_from([0, 1])


def trained(session: Session, base: str, shift: int) -> Session:
    """The session with the traits that `base` needs; the engine serves any."""
    attention = "block-causal" if base == "block-diffusion" else "full"
    model = replace(session.manifest.model, logit_shift=shift, window_attention=attention)
    return Session(session.folder, replace(session.manifest, model=model), session.program)


def threshold(base: str, given_settings: dict[str, Any], confidence: float) -> dict[str, Any]:
    """The confidence where the base fills by it."""
    by_count = base == "vanilla" or given_settings.keys() & {"fill", "factor"}
    return {} if by_count else {"confidence": confidence}


@settings(deadline=None, max_examples=10)
@pytest.mark.parametrize(("base", "given_settings"), CASES)
@given(PROMPTS, SHIFTS, st.integers(0, 4), st.sampled_from([0.1, 0.5, 0.9]))
def test_every_decode_ends_without_masks(
    session: Session,
    base: str,
    given_settings: dict[str, Any],
    prompt: list[int],
    shift: int,
    lookahead: int,
    confidence: float,
) -> None:
    last = None
    for event in trained(session, base, shift).stream(
        prompt_ids=prompt,
        base=base,
        lookahead=lookahead,
        max_new_tokens=24,
        **threshold(base, given_settings, confidence),
        **given_settings,
    ):
        assert np.isfinite(event.scores).all()
        assert len(event.scores) <= lookahead + 1
        last = event
    assert last is not None
    assert not last.masked.any()
    assert last.tokens[: len(prompt)].tolist() == prompt
    assert not (last.tokens[len(prompt) :] == MASK).any()


@settings(deadline=None, max_examples=5)
@pytest.mark.parametrize(("base", "given_settings"), CASES)
@given(PROMPTS, SHIFTS)
def test_a_winning_anchor_is_the_base_strategy(
    session: Session, base: str, given_settings: dict[str, Any], prompt: list[int], shift: int
) -> None:
    """Lookahead branches that always lose change neither tokens nor steps."""
    opened = trained(session, base, shift)
    common: dict[str, Any] = {"prompt_ids": prompt, "max_new_tokens": 16, **given_settings}
    alone = opened.generate(strategy=base, **common)
    none = opened.generate(base=base, lookahead=0, **common)
    losing = opened.generate(base=base, lookahead=3, anchor_wins=True, **common)
    assert alone.token_ids == none.token_ids == losing.token_ids
    assert alone.steps == none.steps == losing.steps
    # A decode of one or two forwards may end before a lookahead could be spawned.
    assert losing.forwards >= alone.forwards == alone.steps


@pytest.mark.parametrize(("base", "given_settings"), CASES)
def test_lookaheads_save_steps(session: Session, base: str, given_settings: dict[str, Any]) -> None:
    """With one token per step the winner brings one more."""
    opened = trained(session, base, shift=0)
    common: dict[str, Any] = {"prompt_ids": [5, 6, 7], "max_new_tokens": 24}
    common["stop"] = "none" if base == "block-diffusion" else None
    common |= threshold(base, given_settings, 1.0)
    common |= {key: value for key, value in given_settings.items() if key != "factor"}
    alone = opened.generate(strategy=base, **common)
    ahead = opened.generate(base=base, lookahead=4, **common)
    assert ahead.steps < alone.steps
    assert ahead.tokens == alone.tokens


@pytest.mark.parametrize("kind", ["prefix", "dual"])
def test_a_cache_refresh_runs_the_anchor_alone(session: Session, kind: str) -> None:
    """In the first step and at the start of each block; no other step computes the prompt."""
    events = [
        (event.committed > 0, len(event.scores), event.window)
        for event in trained(session, "fast-dllm", 1).stream(
            prompt_ids=[5, 6, 7], base="fast-dllm", cache=kind, lookahead=4, max_new_tokens=24
        )
    ]
    refreshes = [event for event in events if event[0]]
    assert refreshes == [(True, 1, 27)] * 3
    assert all(window <= 24 for refresh, _, window in events if not refresh)
    assert max(branches for _, branches, _ in events) == 5


@settings(deadline=None, max_examples=8)
@given(PROMPTS, SHIFTS, st.sampled_from(["prefix", "dual"]), st.integers(0, 4))
def test_stored_blocks_are_what_a_fresh_forward_computes(
    engine: OnnxRuntimeState,
    session: Session,
    prompt: list[int],
    shift: int,
    kind: str,
    lookahead: int,
) -> None:
    """Whichever branch won, the cache holds the keys and values of the tokens committed."""
    opened = trained(session, "block-diffusion", shift)
    decoding = Session(opened.folder, opened.manifest, SingleState(engine))
    tokens = None
    for event in decoding.stream(
        prompt_ids=prompt,
        base="block-diffusion",
        cache=kind,
        small_block_size=4,
        lookahead=lookahead,
        max_new_tokens=16,
        stop="none",
        confidence=0.3,
    ):
        tokens = event.tokens
    assert tokens is not None
    end = len(tokens) // BLOCK * BLOCK
    stored_keys, stored_values = cache(engine, end)
    engine.reset()
    blocks = [Block(start, start + BLOCK, 0) for start in range(0, end, BLOCK)]
    visible = block_causal_mask(blocks, 0, end)
    fresh = run_step(engine, tokens[None, :end], np.arange(end), visible)
    assert np.abs(fresh.keys - stored_keys).max() < 1e-4
    assert np.abs(fresh.values - stored_values).max() < 1e-4
