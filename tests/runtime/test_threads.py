"""Many threads on one session: the tokens of serial decodes, and a pool that stays whole."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lopa.runtime.contract import LopaError
from lopa.runtime.decoder import StepEvent
from lopa.runtime.pool import Lease
from lopa.runtime.prompt import TextCodec
from lopa.runtime.session import Session, open_bundle

THREADS, PROMPTS_EACH, DECODES = 8, 200, 3
BUDGET: dict[str, Any] = {"block_size": 8, "max_new_tokens": 16}
SETTINGS: list[dict[str, Any]] = [
    {"strategy": "lopa", "lookahead": 3},
    {"strategy": "lopa", "lookahead": 3, "temperature": 0.8, "seed": 5},
    {"strategy": "lopa", "lookahead": 4, "lookahead_shape": "nested", "confirm": 0.0},
    {"strategy": "d2f"},
    {"strategy": "vanilla", "steps": 12},
    {"strategy": "fast-dllm", "cache": "none"},
    {"strategy": "fast-dllm", "cache": "prefix"},
    {"strategy": "fast-dllm", "cache": "dual"},
]
BLOCKS: list[dict[str, Any]] = [
    {"strategy": "block-diffusion", "cache": "prefix", "fill": "sequential"},
    {"strategy": "block-diffusion", "cache": "dual", "small_block_size": 4},
    {"strategy": "lopa", "base": "block-diffusion", "cache": "prefix", "lookahead": 2},
]
PROMPT = [5, 17, 42, 8]
Job = tuple[Session, dict[str, Any], list[int]]


@pytest.fixture
def pooled(tiny_bundle: Path) -> Session:
    return open_bundle(tiny_bundle, threads=1, decodes=DECODES)


@pytest.fixture
def expected(session: Session) -> tuple[int, ...]:
    return session.generate(prompt_ids=PROMPT, **BUDGET).token_ids


def block_causal(session: Session) -> Session:
    """A session that shares the program, with the traits that block diffusion needs."""
    model = replace(session.manifest.model, window_attention="block-causal")
    manifest = replace(session.manifest, model=model)
    return Session(session.folder, manifest, session.program, session.decodes)


def assert_whole(session: Session, expected: tuple[int, ...]) -> None:
    """All states are free, and each of them decodes right."""
    assert session.free == session.decodes
    streams = [session.stream(prompt_ids=PROMPT, **BUDGET) for _ in range(session.decodes)]
    last: list[StepEvent] = []
    for stream in streams:  # each holds its state while the next one begins
        last.append(next(stream))
    assert session.free == 0
    for index, stream in enumerate(streams):
        for event in stream:
            last[index] = event
    assert {tuple(event.tokens[len(PROMPT) :].tolist()) for event in last} == {expected}
    assert session.free == session.decodes


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    with ThreadPoolExecutor(count) as executor:
        return [future.result() for future in [executor.submit(work, n) for n in range(count)]]


def test_many_threads_give_the_tokens_of_serial_decodes(pooled: Session) -> None:
    """With abandoned streams and failing callbacks between them."""
    causal = block_causal(pooled)
    prompts = [[(7 * n + 3 * i) % 300 for i in range(3 + 2 * n)] for n in range(4)]
    jobs: list[Job] = [
        (session, {**BUDGET, **settings}, prompt)
        for session, choices in ((pooled, SETTINGS), (causal, BLOCKS))
        for settings in choices
        for prompt in prompts
    ]
    serial = [session.generate(prompt_ids=prompt, **rest) for session, rest, prompt in jobs]

    def work(seed: int) -> int:
        rng, wrong = random.Random(seed), 0
        for turn in range(PROMPTS_EACH):
            index = rng.randrange(len(jobs))
            session, settings, prompt = jobs[index]
            if turn % 10 == 3:  # abandoned half way
                next(session.stream(prompt_ids=prompt, **settings))
            if turn % 10 == 7:
                with pytest.raises(ZeroDivisionError):
                    session.generate(prompt_ids=prompt, on_step=lambda _: 1 / 0, **settings)  # type: ignore[arg-type]
            found = session.generate(prompt_ids=prompt, **settings)
            wrong += replace(found, seconds=0) != replace(serial[index], seconds=0)
        return wrong

    assert in_threads(THREADS, work) == [0] * THREADS
    alone = pooled.fork().generate(prompt_ids=PROMPT, **BUDGET).token_ids
    assert_whole(pooled, alone)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_an_error_in_a_callback_gives_the_state_back(
    pooled: Session, expected: tuple[int, ...], error: type[BaseException]
) -> None:
    def fail(event: StepEvent) -> None:
        if event.step == 2:
            raise error("stop")

    for _ in range(2 * DECODES):
        with pytest.raises(error, match="stop"):
            pooled.generate(prompt_ids=PROMPT, on_step=fail, **BUDGET)
    assert_whole(pooled, expected)


def test_an_error_of_the_engine_gives_the_state_back(
    pooled: Session, expected: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pooled.state() as state, monkeypatch.context() as patch:
        patch.setattr(state, "run", lambda shape: 1 / 0)
        held = state
    monkeypatch.setattr(held, "run", lambda shape: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        pooled.generate(prompt_ids=PROMPT, **BUDGET)
    monkeypatch.undo()
    assert_whole(pooled, expected)


def test_unfinished_streams_give_their_state_back(
    pooled: Session, expected: tuple[int, ...]
) -> None:
    closed = pooled.stream(prompt_ids=PROMPT, **BUDGET)
    next(closed)
    assert pooled.free == DECODES - 1
    closed.close()  # type: ignore[attr-defined]
    assert pooled.free == DECODES
    for _ in pooled.stream(prompt_ids=PROMPT, **BUDGET):
        break
    assert pooled.free == DECODES
    cycle: list[Any] = [pooled.stream(prompt_ids=PROMPT, **BUDGET)]
    cycle.append(cycle)
    next(cycle[0])
    assert pooled.free == DECODES - 1
    del cycle
    gc.collect()
    pooled.stream(prompt_ids=PROMPT, **BUDGET)  # one that is never begun holds nothing
    assert_whole(pooled, expected)


def test_a_decode_that_would_wait_for_its_own_thread_is_an_error(
    pooled: Session, expected: tuple[int, ...]
) -> None:
    streams = [pooled.stream(prompt_ids=PROMPT, **BUDGET) for _ in range(DECODES)]
    for stream in streams:
        next(stream)
    fault = "all 3 decodes of this session are held by unfinished streams that wait for this one"
    with pytest.raises(LopaError, match=fault):
        pooled.generate(prompt_ids=PROMPT, **BUDGET)
    with pytest.raises(LopaError, match=fault):
        next(pooled.stream(prompt_ids=PROMPT, **BUDGET))
    found = pooled.fork().generate(prompt_ids=PROMPT, **BUDGET)
    assert found.token_ids == expected
    del streams, stream
    assert_whole(pooled, expected)


def test_a_decode_inside_a_callback_needs_a_second_state(
    session: Session, pooled: Session, expected: tuple[int, ...]
) -> None:
    inner: list[tuple[int, ...]] = []

    def decode_again(event: StepEvent) -> None:
        if event.step == 1:
            inner.append(pooled.generate(prompt_ids=PROMPT, **BUDGET).token_ids)

    assert pooled.generate(prompt_ids=PROMPT, on_step=decode_again, **BUDGET).token_ids == expected
    assert inner == [expected]

    def stream_again(event: StepEvent) -> None:
        next(session.stream(prompt_ids=PROMPT, **BUDGET))

    with pytest.raises(LopaError, match="all 1 decodes"):
        session.generate(prompt_ids=PROMPT, on_step=stream_again, **BUDGET)
    assert_whole(session, expected)


def test_threads_that_wait_for_each_other_do_not_wait_for_ever(tiny_bundle: Path) -> None:
    """Two threads hold a state each and want one more: the later of the two is told."""
    session = open_bundle(tiny_bundle, threads=1, decodes=2)
    both_hold = threading.Barrier(2, timeout=20)

    def work(_: int) -> str:
        stream = session.stream(prompt_ids=PROMPT, **BUDGET)
        next(stream)
        both_hold.wait()
        try:
            session.generate(prompt_ids=PROMPT, **BUDGET)
        except LopaError:
            return "told"
        return "decoded"

    assert sorted(in_threads(2, work)) == ["decoded", "told"]
    assert session.free == 2


def test_a_waiting_thread_goes_on_when_a_stream_ends(
    tiny_bundle: Path, expected: tuple[int, ...]
) -> None:
    """Streams may be begun in one thread and ended in another."""
    session = open_bundle(tiny_bundle, threads=1)
    stream = session.stream(prompt_ids=PROMPT, **BUDGET)
    in_threads(1, lambda _: next(stream))
    next(stream)
    waiting = ThreadPoolExecutor(1)
    answer = waiting.submit(session.generate, prompt_ids=PROMPT, **BUDGET)
    assert not answer.done()
    *_, event = stream
    assert answer.result(timeout=20).token_ids == expected
    assert tuple(event.tokens[len(PROMPT) :].tolist()) == expected, "the last event keeps its own"
    waiting.shutdown()
    assert session.free == 1


def test_a_state_whose_holder_vanished_comes_back(session: Session) -> None:
    """As an interrupt leaves it between two lines; a thread that waits sees it, too."""
    pool = session.fork()._pool
    lease = Lease(threading.get_ident())
    pool._take(lease)
    other = Lease(-1)
    waiting = threading.Thread(target=pool._take, args=(other,))
    waiting.start()
    assert pool.free == 0
    del lease
    waiting.join(timeout=20)
    assert not waiting.is_alive()
    assert (pool.free, other.pooled.holder) == (0, -1)


def test_a_fork_shares_all_but_the_state(session: Session) -> None:
    other = session.fork(decodes=2)
    assert (other.program, other.codec) == (session.program, session.codec)
    assert (session.decodes, other.decodes) == (1, 2)
    with session.state() as mine, other.state() as one, other.state() as two:
        assert len({id(state) for state in (mine, one, two)}) == 3
        assert (session.free, other.free) == (0, 0)


def test_the_tokenizer_is_loaded_once(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[TextCodec] = []
    load = TextCodec.__init__

    def count(self: TextCodec, *arguments: Any) -> None:
        loaded.append(self)
        load(self, *arguments)

    monkeypatch.setattr(TextCodec, "__init__", count)
    session = open_bundle(tiny_bundle, threads=1, decodes=4)
    together = threading.Barrier(8, timeout=20)

    def encode(_: int) -> tuple[int, ...]:
        together.wait()
        return tuple(session.encode("the answer"))

    assert len(set(in_threads(8, encode))) == 1
    assert len(loaded) == 1


@pytest.mark.parametrize("decodes", [0, -1, 1025, True, 1.5])
def test_numbers_of_decodes_that_are_none(tiny_bundle: Path, decodes: Any) -> None:
    with pytest.raises(LopaError, match=r"decodes is .*, expected a whole number from 1 to 1024"):
        open_bundle(tiny_bundle, decodes=decodes)
