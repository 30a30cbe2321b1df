from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import lopa
import numpy as np
import pytest
from lopa.runtime.contract import LopaError
from lopa.runtime.manifest import BUNDLE_FILE, read_bundle, write_manifest
from lopa.runtime.options import DecodeOptions
from lopa.runtime.prompt import PromptError
from lopa.runtime.session import Session

from ..export.tiny_checkpoint import IM_END, MASK, PAD

PROMPT = [5, 17, 90, 200, 41, 66]
STRATEGIES: dict[str, dict[str, Any]] = {
    "lopa": {"strategy": "lopa", "lookahead": 4, "max_new_tokens": 32},
    "nested": {"lookahead_shape": "nested", "confirm": 0.0, "max_new_tokens": 32},
    "d2f": {"strategy": "d2f", "max_new_tokens": 32},
    "vanilla": {"strategy": "vanilla", "max_new_tokens": 16, "steps": 12},
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_generate_sums_up_the_stream(session: Session, name: str) -> None:
    settings = STRATEGIES[name]
    events = [
        (event.step, len(event.scores), event.shape, event.tokens.tolist(), event.limited)
        for event in session.stream(prompt_ids=PROMPT, **settings)
    ]
    result = session.generate(prompt_ids=PROMPT, **settings)
    assert [event[0] for event in events] == list(range(1, len(events) + 1))
    assert result.token_ids == tuple(events[-1][3][len(PROMPT) :])
    assert events[-1][3][: len(PROMPT)] == PROMPT
    assert result.steps == len(events)
    assert result.forwards == sum(event[1] for event in events)
    assert result.rows == sum(event[2].window_rows for event in events)
    assert result.prompt_tokens == len(PROMPT)
    assert result.tokens == len(result.token_ids)
    assert result.tpf == result.tokens / result.steps
    assert result.limited == any(event[4] for event in events)
    assert result.seconds > 0
    assert MASK not in result.token_ids


@pytest.mark.parametrize("name", STRATEGIES)
def test_events_tell_every_change(session: Session, name: str) -> None:
    """Replaying `filled` and `extras` gives the tokens; the cache only ever grows."""
    tokens = dict(enumerate(PROMPT))
    cached = most = 0
    for event in session.stream(prompt_ids=PROMPT, **STRATEGIES[name]):
        assert event.cached == cached
        cached += event.committed
        tokens |= dict(event.filled)
        assert bool(event.extras) != event.anchor_won
        tokens |= dict(event.extras)
        most = max(most, len(event.extras))
        known = {p: int(t) for p, t in enumerate(event.tokens) if not event.masked[p]}
        assert known == tokens
        assert (event.tokens[event.masked] == MASK).all()
        assert len(event.confidences) == len(event.scores) >= 1
        assert event.confidences[-1] == 1.0
        assert event.window <= event.shape.window
    assert name == "vanilla" or cached > len(PROMPT)
    assert (most > 1) == (name == "nested")


def test_stop_token_ends_the_text_but_not_the_ids(session: Session) -> None:
    result = session.generate(prompt_ids=PROMPT, **STRATEGIES["d2f"])
    stops = [i for i, token in enumerate(result.token_ids) if token in (PAD, IM_END)]
    assert result.useful_tokens == (stops[0] + 1 if stops else result.tokens)
    assert result.text == session.codec.decode(result.token_ids)


def test_options_and_settings_combine(session: Session) -> None:
    options = DecodeOptions(strategy="d2f", max_new_tokens=32)
    one = session.generate(prompt_ids=PROMPT, options=options)
    two = session.generate(prompt_ids=PROMPT, strategy="d2f", max_new_tokens=32)
    assert one.token_ids == two.token_ids
    shorter = session.generate(prompt_ids=PROMPT, options=options, max_new_tokens=16)
    assert shorter.tokens == 16
    with pytest.raises(LopaError, match="unknown setting colour; known: strategy, base"):
        session.generate(prompt_ids=PROMPT, colour="red")
    with pytest.raises(LopaError, match="lookahead is 9, the bundle has 4"):
        session.generate(prompt_ids=PROMPT, lookahead=9)


def test_prompts_do_not_influence_each_other(session: Session) -> None:
    alone = session.generate(prompt_ids=PROMPT, **STRATEGIES["lopa"])
    session.generate(prompt_ids=list(range(30)), **STRATEGIES["lopa"])
    list(zip(range(2), session.stream(prompt_ids=[9] * 20, **STRATEGIES["lopa"]), strict=False))
    assert session.generate(prompt_ids=PROMPT, **STRATEGIES["lopa"]).token_ids == alone.token_ids


def test_sampling_is_reproducible(session: Session) -> None:
    settings = {**STRATEGIES["lopa"], "temperature": 1.5}
    results = [
        session.generate(prompt_ids=PROMPT, seed=seed, **settings).token_ids
        for seed in (1, 1, 2, 1)
    ]
    assert results[0] == results[1] == results[3]
    assert results[0] != results[2]


def test_text_prompts(session: Session) -> None:
    chat = session.generate("the answer", max_new_tokens=8)
    ids = session.codec.encode("the answer", raw=False)
    assert chat.token_ids == session.generate(prompt_ids=ids, max_new_tokens=8).token_ids
    raw = session.generate("the answer", raw=True, max_new_tokens=8)
    assert raw.prompt_tokens == len(session.codec.encode("the answer", raw=True))
    assert raw.prompt_tokens < chat.prompt_tokens


@pytest.mark.parametrize("wrong", ["12", [1, "2"], [1.5], 7, [None]])
def test_ids_that_are_no_numbers(session: Session, wrong: Any) -> None:
    with pytest.raises(PromptError, match="expected a sequence of whole numbers"):
        session.generate(prompt_ids=wrong)


def test_array_prompts(session: Session) -> None:
    ids: Any = np.array(PROMPT)
    assert session.encode(None, ids) == PROMPT


@pytest.mark.parametrize(
    ("prompt", "ids", "fault"),
    [
        (None, None, "give either prompt or prompt_ids"),
        ("a", [1], "give either prompt or prompt_ids"),
        ("", None, "the prompt is empty; give at least one character"),
        (None, [], "the prompt is empty; give at least one token"),
        (None, [3, 320, -2], "prompt id 320 is outside the vocabulary of 320"),
        (None, [-1], "prompt id -1 is outside the vocabulary of 320"),
        (None, [1] * 41, "needs a step of 1 branch by 49 window tokens over 49 cache slots"),
    ],
)
def test_prompt_fault(
    session: Session, prompt: str | None, ids: list[int] | None, fault: str
) -> None:
    with pytest.raises(PromptError, match=fault):
        session.generate(prompt, prompt_ids=ids)
    with pytest.raises(PromptError, match=fault):
        session.stream(prompt, prompt_ids=ids)  # at the call, not at the first step


@pytest.mark.parametrize("name", STRATEGIES)
def test_mask_tokens_of_the_prompt_stay(session: Session, name: str) -> None:
    prompt = [5, MASK, 90, MASK, MASK]
    for event in session.stream(prompt_ids=prompt, **STRATEGIES[name]):
        assert event.tokens[:5].tolist() == prompt
        assert not event.masked[:5].any()
        assert min(position for position, _ in event.filled or [(5, 0)]) >= 5


def test_a_block_that_does_not_fit_limits_the_result_or_is_an_error(session: Session) -> None:
    """96 slots hold the prompt and 7 blocks; the window of 48 rows is no limit here."""
    settings: dict[str, Any] = {"strategy": "d2f", "max_new_tokens": 160}
    result = session.generate(prompt_ids=[7] * 40, **settings)
    assert result.limited
    assert result.tokens == 56
    with pytest.raises(LopaError, match=r"the next block does not fit: .*decode without --strict"):
        session.generate(prompt_ids=[7] * 40, strict=True, **settings)
    within = session.generate(prompt_ids=[7] * 40, strict=True, strategy="d2f", max_new_tokens=56)
    assert not within.limited
    assert within.token_ids == result.token_ids


def test_the_window_limits_how_many_blocks_are_open(session: Session) -> None:
    settings: dict[str, Any] = {"strategy": "d2f", "add_threshold": 0, "confidence": 1}
    events = list(session.stream(prompt_ids=PROMPT, max_new_tokens=72, **settings))
    assert max(event.window for event in events) == 48
    assert any(event.limited for event in events)
    assert len(events[-1].tokens) == len(PROMPT) + 72
    assert not events[-1].masked.any()


def test_opening_what_is_no_bundle(tmp_path: Path, tiny_bundle: Path) -> None:
    with pytest.raises(LopaError, match=r"no bundle at .*; make one with: lopa build"):
        lopa.open_bundle(tmp_path / "missing")
    with pytest.raises(LopaError, match="provider is 'npu', expected one of"):
        lopa.open_bundle(tiny_bundle, provider="npu")
    with pytest.raises(LopaError, match=r"provider 'cuda' needs onnxruntime-gpu and an NVIDIA GPU"):
        lopa.open_bundle(tiny_bundle, provider="cuda")


def test_an_edited_engine_file_is_found_at_open(tmp_path: Path, tiny_bundle: Path) -> None:
    edited = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, edited)
    weights = edited / "weights.data"
    data = bytearray(weights.read_bytes())
    data[100] ^= 1
    weights.write_bytes(data)
    with pytest.raises(LopaError, match=r"weights.data was changed: sha256 differs"):
        lopa.open_bundle(edited)
    lopa.open_bundle(edited, verify=False)
    (edited / "step.onnx").unlink()
    with pytest.raises(LopaError, match=r"step.onnx is missing; weights.data was changed"):
        lopa.open_bundle(edited)
    manifest = edited / BUNDLE_FILE
    manifest.write_text(manifest.read_text(encoding="utf-8")[:200], encoding="utf-8")
    with pytest.raises(LopaError, match=r"manifest.json: not valid JSON"):
        lopa.open_bundle(edited)


def test_a_bundle_of_an_unknown_target(tmp_path: Path, tiny_bundle: Path) -> None:
    other = tmp_path / "bundle"
    shutil.copytree(tiny_bundle, other)
    manifest = read_bundle(other)
    write_manifest(other, replace(manifest, engine=replace(manifest.engine, target="x")))
    with pytest.raises(LopaError, match="bundle target 'x' is not known to this lopa; known: "):
        lopa.open_bundle(other)
