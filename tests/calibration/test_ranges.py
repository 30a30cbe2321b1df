from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from lopa.calibration.ranges import (
    ActivationReader,
    Origin,
    RangeFile,
    RowSamples,
    TensorRange,
)
from lopa.calibration.sites import StepGraph, find_sites
from lopa.calibration.states import StateFolder, asked_rows, live_rows

from .conftest import Run


def test_streamed_parts_equal_the_whole() -> None:
    values = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
    whole, parts = TensorRange.empty(4), TensorRange.empty(4)
    whole.add(values)
    for part in np.split(values, 6):
        parts.add(part)
    assert whole.data() == parts.data()
    assert np.array_equal(whole.channels, np.abs(values).max(0))
    assert whole.data()["largest"] == float(np.abs(values).max())


def test_json_round_trip(tmp_path: Path) -> None:
    origin = Origin("a", "b", {"samples": 3})
    file = RangeFile(tmp_path / "ranges.json", origin, {"x": 5})
    file.tensors["x"].add(np.random.default_rng(1).standard_normal((7, 5)).astype(np.float32))
    file.done = 2
    file.save()
    again = RangeFile(tmp_path / "ranges.json", origin, {"x": 5})
    assert again.done == 2
    assert again.tensors["x"].data() == file.tensors["x"].data()
    assert json.loads((tmp_path / "ranges.json").read_text())["model_sha256"] == "a"


def test_activations_are_fetched_in_parts(
    int8: Run, tiny_graph: StepGraph, monkeypatch: object
) -> None:
    sites = find_sites(tiny_graph)
    states = StateFolder(int8.work / "states")
    feeds = states.load(states.names()[-1])
    reader = ActivationReader(tiny_graph, sites)
    whole = dict(reader(feeds))
    monkeypatch.setattr("lopa.calibration.ranges.FETCHED_BYTES", 1)  # type: ignore[attr-defined]
    parts = dict(reader(feeds))
    assert list(whole) == [site.name for site in sites]
    for name, rows in whole.items():
        assert np.array_equal(rows, parts[name])
    assert len(whole["layers.0.down"]) == live_rows(feeds).sum()
    assert len(whole["head"]) == len(asked_rows(feeds))


def test_padding_is_left_out() -> None:
    mask = np.eye(6, dtype=bool)
    mask[:4, :4] = True
    feeds = {"isolation_mask": mask, "head_rows": np.array([2, 3, 0, 0, 0], np.int32)}
    assert live_rows(feeds).tolist() == [True] * 4 + [False] * 2
    assert sorted(feeds["head_rows"][asked_rows(feeds)]) == [0, 2, 3]


def test_row_samples(tmp_path: Path) -> None:
    samples = RowSamples(tmp_path, {"x": 2}, states=128)
    assert samples.per_state == {"x": 4}
    for state in (1, 0):
        samples.add("x", np.arange(10, dtype=np.float32).reshape(5, 2) + 100 * state, state)
    assert samples.complete(2)
    assert not samples.complete(3)
    assert samples.read("x")[:, 0].tolist() == [0, 2, 4, 6, 100, 102, 104, 106]


MEMORY = """
import resource, sys
from pathlib import Path
from lopa.calibration.ranges import *
from lopa.calibration.sites import StepGraph, find_sites
from lopa.calibration.states import StateFolder

model, states, work = map(Path, sys.argv[1:4])
graph = StepGraph(model, "step.onnx")
sites = find_sites(graph)
channels = {site.name: graph.depth(site.products[0]) for site in sites}
folder = StateFolder(states)
names = folder.names() * int(sys.argv[4])
folder.names = lambda: names
ranges = RangeFile(work / "ranges.json", Origin("", "", {}), channels)
collect_ranges(graph, sites, folder, ranges, RowSamples(work / "rows", channels, 800), print)
assert ranges.done == len(names)
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def test_memory_does_not_grow_with_the_number_of_states(
    int8: Run, tiny_model: Path, tmp_path: Path
) -> None:
    """Kept in memory, the activations of 790 more steps would take about 70 MB."""
    states = StateFolder(int8.work / "states")
    graph = StepGraph(tiny_model, "step.onnx")
    sites = find_sites(graph)
    feeds = [states.load(name) for name in states.names()]
    kept = 79 * sum(
        4 * graph.depth(site.products[0]) * int(live_rows(item).sum())
        for site in sites
        for item in feeds
    )
    assert kept > 50e6

    def peak(repeats: int) -> int:
        work = tmp_path / str(repeats)
        work.mkdir()
        arguments = [str(tiny_model), str(int8.work / "states"), str(work), str(repeats)]
        done = subprocess.run(
            [sys.executable, "-c", MEMORY, *arguments], capture_output=True, text=True, check=True
        )
        return int(done.stdout.rpartition("peak ")[2])

    assert peak(80) - peak(1) < 0.3 * kept
