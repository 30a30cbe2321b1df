"""The graph of every family: portable, complete, and finite in half precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from lopa.export.source import open_source
from lopa.export.spec import parameter_shapes
from lopa.graphs.lint import lint
from lopa.runtime.manifest import read_model

from ..exported import Exports
from ..runtime.engine_steps import is_finite, open_engine, run_step
from .test_backbone import load, run
from .tiny_family import CONFIGS, write_family

IDS = np.random.default_rng(4).integers(0, 290, (2, 9))
VISIBLE = np.kron(np.eye(2), np.tril(np.ones((3, 3))).repeat(3, 0).repeat(3, 1)).astype(np.bool_)


@pytest.fixture(params=CONFIGS)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _checkpoint(exports: Exports, family: str) -> Path:
    return exports.once(f"{family}-checkpoint", lambda out: write_family(out, family))


def _model(exports: Exports, family: str) -> Path:
    checkpoint = _checkpoint(exports, family)
    return exports.model(f"{family}-half", checkpoint, precision="fp16", candidates=16)


def test_graph_is_portable_and_has_every_parameter(exports: Exports, family: str) -> None:
    folder = _model(exports, family)
    graph = onnx.load(folder / "step.onnx", load_external_data=False)
    assert lint(graph) == []
    stored = {tensor.name: tuple(tensor.dims) for tensor in graph.graph.initializer}
    shapes = parameter_shapes(open_source(_checkpoint(exports, family)).spec)
    assert {name: stored.get(name) for name in shapes} == shapes
    others = [np.prod(shape) for name, shape in stored.items() if name not in shapes]
    assert max(others) <= read_model(folder).model.vocab_size  # no folded copy of a matrix


def test_half_precision_agrees_with_single(exports: Exports, family: str) -> None:
    engine = open_engine(exports.bundle(f"{family}-half", _model(exports, family), 1, (9,), (32,)))
    step = run_step(engine, IDS, np.arange(9), VISIBLE)
    assert is_finite(step)
    module = load(_checkpoint(exports, family))
    info = module.spec.info
    empty = np.zeros((info.layers, info.kv_heads, 1, info.head_dim))
    positions = np.tile(np.arange(9), (2, 1))
    exact = run(module, IDS, positions, VISIBLE, np.zeros(1, np.bool_), (empty, empty))
    assert np.abs(step.keys - exact[3].numpy()).max() < 0.05
    assert np.abs(step.values - exact[4].numpy()).max() < 0.05
    assert np.abs(step.entropy - exact[2].numpy()).max() < 0.05
    first, second = exact[1][:, 0], exact[1][:, 1]
    clear = ((first - second) > 0.1).numpy()
    assert clear.mean() > 0.5
    agree = torch.from_numpy(step.token_ids[:, 0]) == exact[0][:, 0]
    assert agree.numpy()[clear].all()
