"""CUDA graph ids of an ONNX Runtime engine, driven on the CPU: its run options are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lopa.runtime.contract import Instance, LopaError
from lopa.runtime.engines.onnxruntime.cuda_graphs import SessionGraphs
from lopa.runtime.engines.onnxruntime.program import OnnxRuntimeProgram
from lopa.runtime.engines.onnxruntime.state import OnnxRuntimeState
from lopa.runtime.engines.single import SingleState
from lopa.runtime.engines.status import EngineWarning
from lopa.runtime.manifest import read_bundle
from lopa.runtime.session import Session, open_bundle

from ...engine_steps import state_of

PROMPT = [5, 17, 42, 8, 99, 3]
SETTINGS: dict[str, Any] = {"lookahead": 3, "max_new_tokens": 24}


class Watched:
    """A session that notes the graph id of every run; with `broken` only runs without one work."""

    def __init__(self, session: Any, broken: bool) -> None:
        self._session, self._broken = session, broken
        self.ids: list[str] = []

    def io_binding(self) -> Any:
        return self._session.io_binding()

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        self.ids.append(options.get_run_config_entry("gpu_graph_id"))
        if self._broken and self.ids[-1] != "-1":
            raise RuntimeError("operation not permitted\nwhen stream is capturing")
        self._session.run_with_iobinding(binding, options)


def watched(folder: Path, broken: bool, strict: bool = False) -> tuple[Session, Watched]:
    manifest = read_bundle(folder)
    program = OnnxRuntimeProgram(folder, manifest, "cpu", threads=1, resident=True)
    session = Watched(program.sessions[0], broken)
    program.sessions = [session]
    state = OnnxRuntimeState(program, SessionGraphs(manifest.instances, strict))
    return Session(folder, manifest, SingleState(state)), session


def test_every_instance_has_an_id_of_its_own(tiny_bundle: Path) -> None:
    session, runs = watched(tiny_bundle, broken=False)
    shapes = [event.shape for event in session.stream(prompt_ids=PROMPT, **SETTINGS)]
    instances: list[Instance] = list(session.manifest.instances)
    assert runs.ids == [str(instances.index(shape) + 1) for shape in shapes]
    states = {graph.instance: graph.state for graph in state_of(session).status().graphs}
    assert len(states) == len(instances)
    assert {name for name, state in states.items() if state == "library"} == {
        shape.name for shape in shapes
    }


def test_a_capture_that_fails_falls_back_to_plain_runs(tiny_bundle: Path) -> None:
    expected = open_bundle(tiny_bundle).generate(prompt_ids=PROMPT, **SETTINGS)
    session, runs = watched(tiny_bundle, broken=True)
    with pytest.warns(EngineWarning, match="runs without a CUDA graph: operation not permitted w"):
        found = session.generate(prompt_ids=PROMPT, **SETTINGS)
    assert found.token_ids == expected.token_ids
    used = [graph for graph in state_of(session).status().graphs if graph.state == "plain"]
    assert len(runs.ids) == found.steps + len(used), "each failed once and never again"


def test_strict_does_not_fall_back(tiny_bundle: Path) -> None:
    session, _ = watched(tiny_bundle, broken=True, strict=True)
    with pytest.raises(LopaError, match=r"capturing; decode without --strict"):
        session.generate(prompt_ids=PROMPT, **SETTINGS)


def test_a_failure_after_the_capture_is_no_capture_failure(tiny_bundle: Path) -> None:
    session, runs = watched(tiny_bundle, broken=False)
    session.generate(prompt_ids=PROMPT, **SETTINGS)
    runs._broken = True
    with pytest.raises(LopaError, match=r"failed in a step of step.onnx: .*not permitted"):
        session.generate(prompt_ids=PROMPT, **SETTINGS)
