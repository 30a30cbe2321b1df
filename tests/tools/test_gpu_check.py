"""The GPU check run on the CPU at a tiny size: all of it but the GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lopa.runtime.contract import Instance, LopaError
from lopa.runtime.engines.cuda import Cuda
from lopa.tools import gpu_check
from lopa.tools.bench.timed_step import SIZES, TimedModel

from ..exported import Exports


def test_the_whole_check_runs_on_the_cpu(
    exports: Exports, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = exports.bundle("tiny-check", tiny_model, 1, (32,), (256,), (192,))
    out = tmp_path / "check.json"
    command = ["--provider=cpu", "--size=tiny", "--lookahead=0,2", "--window=4,8", "--context=16"]
    more = [f"--bundle={bundle}", "--repeats=2", f"--json={out}"]
    assert gpu_check.main([*command, *more]) == 0
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["parity"] == found["prompts"] == 4
    assert len(found["nodes"]) == 5
    assert min(found["nodes"]) > 50, "on a CPU every node is launched in every run"
    assert [timing["instance"] for timing in found["timings"]] == [
        "b1-w4-c16-r4",
        "b3-w4-c16-r12",
        "b1-w8-c16-r8",
        "b3-w8-c16-r24",
    ]
    for timing in found["timings"]:
        assert timing["device_ms"] is None
        assert timing["clock_ms"] > 0
    shown = capsys.readouterr().out
    assert "parity: 4 of 4 demo prompts give the same tokens as on the CPU" in shown
    assert "NOT replayed" in shown


def test_floors_are_those_of_the_dream_7b_shapes() -> None:
    """4096 rows: the weights are read once, every row takes two operations per weight."""
    model = object.__new__(TimedModel)
    model.info = SIZES["7b"].model()
    layer = 3584 * (3584 + 2 * 512 + 3584) + 3 * 3584 * 18944
    head = 3584 * 152064
    model.body_weights = 28 * layer
    model.weight_bytes = 2 * (28 * layer + head)
    read, products = model.floors(Instance(9, 64, 512, 576), 1e12, 1e15)
    assert read == pytest.approx(2 * (28 * layer + head) / 1e9)
    assert products == pytest.approx(2 * 576 * (28 * layer + head) / 1e12)
    assert 14.1 < read < 14.2


def test_nodes_are_counted_inside_their_run() -> None:
    events = [
        {"name": "model_run", "cat": "Session", "ts": 10, "dur": 10},
        {"name": "MatMul", "cat": "Node", "ts": 12, "dur": 1},
        {"name": "Add", "cat": "Node", "ts": 14, "dur": 1},
        {"name": "model_run", "cat": "Session", "ts": 30, "dur": 10},
        {"name": "session_initialization", "cat": "Session", "ts": 0, "dur": 5},
    ]
    assert gpu_check.nodes_per_run(events) == [2, 0]


def test_without_a_gpu_the_check_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(self: Cuda) -> None:
        raise LopaError("no driver")

    monkeypatch.setattr(Cuda, "gpus", none)
    assert gpu_check.main([]) == 1
    assert capsys.readouterr().err == "gpu_check: error: no driver\n"
