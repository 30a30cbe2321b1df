"""Static instances and resident buffers give what exact shapes give."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lopa.runtime.contract import Instance
from lopa.runtime.engines.onnxruntime.program import OnnxRuntimeProgram
from lopa.runtime.engines.onnxruntime.state import OnnxRuntimeState
from lopa.runtime.engines.single import SingleState
from lopa.runtime.manifest import BundleManifest, read_bundle
from lopa.runtime.session import Session

from ...engine_steps import gap, run_step

# Prompts whose cache needs 64 slots, grows to 96, and needs 64 again.
PROMPTS = ([3, 1, 4, 1, 5], list(range(40)), [9, 2, 6])
Trajectory = list[tuple[int, tuple[float, ...], list[int], int]]

PATHS: dict[str, Callable[[Path, BundleManifest], OnnxRuntimeState]] = {
    "static": lambda folder, manifest: OnnxRuntimeProgram(
        folder,
        dataclasses.replace(manifest, engine=dataclasses.replace(manifest.engine, dynamic=False)),
        threads=1,
    ).decode_state(),
    "resident": lambda folder, manifest: OnnxRuntimeProgram(
        folder, manifest, threads=1, resident=True
    ).decode_state(),
}


def _decode(session: Session, prompt: list[int], **settings: Any) -> Trajectory:
    return [
        (event.winner, event.scores, event.tokens.tolist(), event.committed)
        for event in session.stream(prompt_ids=prompt, **settings)
    ]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("attention", ["full", "block-causal"])
def test_decoding_is_the_same_on_every_path(
    tiny_bundle: Path, session: Session, path: str, attention: str
) -> None:
    manifest = read_bundle(tiny_bundle)
    engine = PATHS[path](tiny_bundle, manifest)
    other = Session(tiny_bundle, manifest, SingleState(engine))
    settings = {"lookahead": 3, "max_new_tokens": 40, "window_attention": attention}
    for prompt in PROMPTS:
        expected = _decode(session, prompt, **settings)
        found = _decode(other, prompt, **settings)
        assert [step[2:] for step in found] == [step[2:] for step in expected]
        for one, two in zip(found, expected, strict=True):
            assert one[0] == two[0]
            assert one[1] == pytest.approx(two[1], abs=1e-5)


@pytest.mark.parametrize("path", PATHS)
def test_static_paths_run_instances_only(tiny_bundle: Path, path: str) -> None:
    manifest = read_bundle(tiny_bundle)
    engine = PATHS[path](tiny_bundle, manifest)
    assert engine.instances == manifest.instances
    assert engine.shape_for(Instance(1, 3, 2, 1)) == Instance(1, 24, 64, 24)
    assert engine.shape_for(Instance(2, 25, 2, 1)) == Instance(5, 48, 64, 240)
    engine.inputs(engine.shape_for(Instance(1, 3, 65, 1)))
    assert engine.shape_for(Instance(1, 3, 2, 1)) == Instance(1, 24, 96, 24)
    engine.reset()
    assert engine.shape_for(Instance(1, 3, 2, 1)) == Instance(1, 24, 64, 24)


def test_exact_shapes_pad_context_and_head_rows_only(engine: OnnxRuntimeState) -> None:
    engine.reset()
    assert engine.shape_for(Instance(2, 11, 3, 5)) == Instance(2, 11, 64, 8)
    assert engine.shape_for(Instance(2, 11, 3, 22)) == Instance(2, 11, 64, 22)
    assert engine.shape_for(Instance(1, 11, 70, 9)) == Instance(1, 11, 96, 11)


def test_shapes_do_not_disturb_each_other(engine: OnnxRuntimeState) -> None:
    """Buffers are shared between shapes; each run writes all that it reads."""
    engine.reset()
    first = np.array([[7, 8, 9, 10, 11, 12]])
    visible = np.ones((6, 6), np.bool_)
    alone = run_step(engine, first, np.arange(6), visible)
    run_step(engine, np.full((5, 24), 30), np.arange(24), np.ones((120, 120), np.bool_))
    assert gap(alone, run_step(engine, first, np.arange(6), visible)) == 0
