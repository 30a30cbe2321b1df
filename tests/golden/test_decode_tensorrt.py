"""The published loops' trajectories through the TensorRT runtime code, over the library double.

Steps are padded to static instances, replayed from captured graphs, and committed by copies on the
double's device; the cache grows while a decode runs. LOPA_GOLDEN_ALL=1 decodes every case.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from lopa.runtime.contract import Instance
from lopa.runtime.session import open_bundle

from ..runtime.engine_steps import state_of
from ..runtime.engines.tensorrt.bundle import install, write_bundle
from .cases import D2F_FILES, assert_none, read_file
from .conftest import OpenGolden
from .d2f_loops import decode_faults, published_options

STRIDE = 1 if os.environ.get("LOPA_GOLDEN_ALL") else 10
INSTANCES = tuple(
    Instance(branches, window, context, branches * window)
    for branches, window, context in itertools.product((1, 3, 5, 9), (16, 32, 64, 112), (64, 256))
)


@pytest.mark.parametrize("file", D2F_FILES)
def test_trajectories(
    golden: Path,
    open_golden: OpenGolden,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
) -> None:
    data = read_file(golden, file)
    write_bundle(tmp_path / "bundle", open_golden(data["checkpoint"]).folder, INSTANCES)
    doubles = install(monkeypatch)
    session = open_bundle(tmp_path / "bundle", strict=True)
    assert_none(
        f"case {case['id']}: {fault}"
        for case in data["cases"][::STRIDE]
        for fault in decode_faults(session, case, published_options(file, case["settings"]))
    )
    graphs = [graph for graph in state_of(session).status().graphs if graph.state != "unused"]
    assert {graph.state for graph in graphs} == {"captured"}
    replays = sum(graph.replays for graph in graphs)
    assert replays == doubles.cuda.calls.count("cudaGraphLaunch")
    assert replays > len(data["cases"][::STRIDE])
    assert doubles.library.enqueued == 2 * len(graphs)
