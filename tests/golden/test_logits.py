"""Log-probabilities, entropy and cache contents of the saved engine against reference logits."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lopa.runtime.contract import Instance
from lopa.runtime.engines.onnxruntime.state import OnnxRuntimeState
from numpy.typing import NDArray

from ..runtime.engine_steps import state_of
from .conftest import OpenGolden

TOLERANCE = 2e-4
FILES = {"dream-tiny": "dream-tiny", "d2f-dream-lora-tiny": "dream-tiny+d2f-dream-lora-tiny"}
CALLS = ("p1", "p2", "p3", "p4")
NO_SLOTS = np.ones(0, np.bool_)

Floats = NDArray[np.float32]
Fields = dict[str, NDArray[Any]]


@dataclass
class Gap:
    """Largest absolute difference of every compared quantity."""

    found: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, one: NDArray[Any], other: NDArray[Any]) -> None:
        assert one.shape == other.shape, f"{name}: {one.shape}, expected {other.shape}"
        self.found[name] = float(np.abs(one - other).max(initial=0))

    def check(self) -> None:
        wide = {name: gap for name, gap in self.found.items() if not gap < TOLERANCE}
        assert self.found
        assert not wide, f"beyond {TOLERANCE}: {wide}"


@pytest.mark.parametrize("file", FILES)
def test_full_masked_and_positioned_forwards(
    golden: Path, open_golden: OpenGolden, file: str
) -> None:
    engine, gap = _engine(open_golden, file), Gap()
    cases = {n: c for n, c in read_cases(golden, file).items() if not n.startswith("cache")}
    for name, case in cases.items():
        ids = case["input_ids"][0]
        mask = case.get("attention_mask")
        visible = np.ones((len(ids), len(ids)), np.bool_) if mask is None else mask[0, 0] == 0
        positions = case.get("position_ids", np.arange(len(ids))[None])[0]
        engine.reset()
        compare_rows(engine, gap, name, ids, positions, visible, NO_SLOTS, case["logits"][0])
    assert {name.rstrip("0123456789") for name in cases} >= {"full", "mask", "pos"}
    gap.check()


@pytest.mark.parametrize("file", FILES)
def test_four_calls_sharing_a_cache(golden: Path, open_golden: OpenGolden, file: str) -> None:
    engine, gap = _engine(open_golden, file), Gap()
    cases = {n: c for n, c in read_cases(golden, file).items() if n.startswith("cache")}
    assert cases
    for name, case in cases.items():
        engine.reset()
        cached = 0
        for call in CALLS:
            ids = case[f"{call}_input_ids"][0]
            visible = np.ones((len(ids), len(ids)), np.bool_)
            logits = case[f"{call}_logits"][0]
            positions = cached + np.arange(len(ids))
            slots = np.ones(cached, np.bool_)
            compare_rows(engine, gap, f"{name}.{call}", ids, positions, visible, slots, logits)
            written = int(case[f"{call}_update_kvcache"][0])
            if written:
                engine.commit(np.arange(written), np.arange(cached, cached + written))
                cached += written
            for held, kind in zip(engine.cache(), "kv", strict=True):
                if f"{call}_cache_{kind}" in case:
                    expected = case[f"{call}_cache_{kind}"][:, 0]
                    gap.add(f"{name}.{call}_cache_{kind}", held[:, :, :cached], expected)
    gap.check()


def _engine(open_golden: OpenGolden, file: str) -> OnnxRuntimeState:
    engine = state_of(open_golden(FILES[file]))
    assert isinstance(engine, OnnxRuntimeState)
    return engine


def read_cases(golden: Path, file: str) -> dict[str, Fields]:
    cases: dict[str, Fields] = defaultdict(dict)
    with np.load(golden / "logits" / f"{file}.npz") as archive:
        for key in archive:
            name, _, part = key.partition(".")
            cases[name][part] = archive[key]
    return cases


def compare_rows(
    engine: OnnxRuntimeState,
    gap: Gap,
    name: str,
    ids: NDArray[np.int64],
    positions: NDArray[np.int64],
    visible: NDArray[np.bool_],
    slots: NDArray[np.bool_],
    logits: Floats | None,
) -> None:
    """Run one branch that sees cache `slots` and compare every row with its logits, if given."""
    count = len(ids)
    shape = engine.shape_for(Instance(1, count, max(len(slots), 1), count))
    inputs = engine.inputs(shape)
    assert inputs.input_ids.shape == (1, count)
    inputs.input_ids[:] = ids
    inputs.position_ids[:] = positions
    inputs.isolation_mask[:] = visible
    inputs.cache_mask[:] = False
    inputs.cache_mask[: len(slots)] = slots
    inputs.head_rows[:] = np.arange(count)
    inputs.temperature[:] = 1
    outputs = engine.run(shape)
    if logits is None:
        return
    log_probs = _log_softmax(logits)
    expected = np.take_along_axis(log_probs, outputs.token_ids.astype(np.intp), 1)
    gap.add(f"{name} log_probs", outputs.log_probs, expected)
    gap.add(f"{name} entropy", outputs.entropy, -(np.exp(log_probs) * log_probs).sum(1))
    each = [len(set(row)) for row in outputs.token_ids.tolist()]
    assert set(each) == {outputs.token_ids.shape[1]}, f"{name}: candidates are repeated"
    assert (np.diff(outputs.log_probs, axis=1) <= 0).all(), f"{name}: candidates are not sorted"


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(-1, keepdims=True)
    result: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result
