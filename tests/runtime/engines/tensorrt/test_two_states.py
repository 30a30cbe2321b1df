"""Two decodes on one TensorRT engine: weights once, everything else twice."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
from lopa.runtime.session import open_bundle

from .bundle import Doubles, install, write_bundle

PROMPTS = ([3, 1, 4, 1, 5], list(range(40)))
SETTINGS: dict[str, Any] = {"lookahead": 3, "max_new_tokens": 40}


@pytest.fixture(params=["tensorrt", "tensorrt-rtx"])
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def doubles(target: str, monkeypatch: pytest.MonkeyPatch, tiny_bundle: Path) -> Doubles:
    return install(monkeypatch, rtx=target == "tensorrt-rtx")


@pytest.fixture
def bundle(tmp_path: Path, tiny_bundle: Path, target: str) -> Path:
    write_bundle(tmp_path / "bundle", tiny_bundle, target=target)
    return tmp_path / "bundle"


def device_bytes(doubles: Doubles) -> int:
    return sum(len(memory) for memory in doubles.cuda.device.values())


def test_interleaved_decodes_do_not_touch_each_other(
    doubles: Doubles, bundle: Path, tiny_bundle: Path
) -> None:
    serial = open_bundle(tiny_bundle, threads=1)
    expected = [serial.generate(prompt_ids=prompt, **SETTINGS).token_ids for prompt in PROMPTS]
    session = open_bundle(bundle, decodes=2)
    for _ in range(2):  # the first time graphs are captured, then they are replayed
        streams = [session.stream(prompt_ids=prompt, **SETTINGS) for prompt in PROMPTS]
        found: list[list[int]] = [[], []]
        live = [0, 1]
        while live:
            for index in list(live):
                event = next(streams[index], None)
                if event is None:
                    live.remove(index)
                else:
                    found[index] = event.tokens.tolist()
        for index, prompt in enumerate(PROMPTS):
            assert tuple(found[index][len(prompt) :]) == expected[index]
        assert session.free == 2


def test_the_engine_is_loaded_once(doubles: Doubles, bundle: Path) -> None:
    session = open_bundle(bundle, decodes=2)
    instances = len(session.program.instances)
    assert len(doubles.library.contexts) == instances
    one, device = doubles.cuda.used(), device_bytes(doubles)
    assert device == sum(session.program.status().decode_memory.values())
    with session.state() as first, session.state() as second:
        assert first is not second
        assert len(doubles.library.contexts) == 2 * instances
        assert len(doubles.cuda.streams) == 2
        assert doubles.cuda.used() == one + one
        assert device_bytes(doubles) == 2 * device
        del first, second
    del session
    gc.collect()
    assert not +doubles.cuda.used()


def test_each_state_has_graphs_of_its_own(
    doubles: Doubles, bundle: Path, target: str, tmp_path: Path
) -> None:
    session = open_bundle(bundle, decodes=2)
    with session.state() as first, session.state() as second:
        shape = session.program.instances[0]
        for state, runs in ((first, 3), (second, 2)):
            for _ in range(runs):
                state.inputs(shape)
                state.run(shape)
        replays = [state.status().graphs[0].replays for state in (first, second)]
    assert replays == ([3, 2] if target == "tensorrt" else [0, 0])
    if target == "tensorrt-rtx":
        kept = tmp_path / "bundle.runtime-cache"
        assert kept.read_bytes() == doubles.library.compiled
