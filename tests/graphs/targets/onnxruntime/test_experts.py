"""Routed experts in a bundle: the library's operator, with the answers of the portable graph."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from lopa.runtime.manifest import read_bundle, verify_files
from numpy.typing import NDArray
from onnx import numpy_helper

from ....export.tiny_family import EXPERTS, write_family
from ....exported import Exports
from ....runtime.engine_steps import gap, is_finite, open_engine, run_step

FAMILIES = {"sdar_moe": [0, 1], "llada2_moe": [1]}  # layers with experts
PRECISIONS = {"fp32": 1e-4, "fp16": 0.03}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _folders(exports: Exports, family: str, precision: str) -> tuple[Path, Path]:
    name = f"experts-{family}-{precision}"
    checkpoint = exports.once(f"{name}-checkpoint", lambda out: write_family(out, family, seed=9))
    model = exports.model(name, checkpoint, precision=precision, candidates=16)
    return model, exports.bundle(name, model, 1, (16,), (32,))


def test_every_routed_layer_is_one_operator(exports: Exports, family: str) -> None:
    model, bundle = _folders(exports, family, "fp32")
    graph = onnx.load(bundle / "step.onnx", load_external_data=False).graph
    routed = [node for node in graph.node if node.op_type == "MoE"]
    assert [node.name for node in routed] == [f"layers.{i}.experts.mixed" for i in FAMILIES[family]]
    for node in routed:
        attributes = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
        assert attributes["k"] == 2
    stored = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    assert stored["layers.1.experts.inner"] == (EXPERTS, 48, 32)
    assert stored["layers.1.experts.outer"] == (EXPERTS, 32, 24)
    assert not any(name.endswith("experts.gate.weight") for name in stored)
    size = (model / "weights.data").stat().st_size
    assert abs((bundle / "weights.data").stat().st_size - size) < 0.1 * size  # stored once
    verify_files(bundle, read_bundle(bundle).files)


def test_weights_of_the_operator(exports: Exports) -> None:
    model, bundle = _folders(exports, "sdar_moe", "fp32")
    before, after = _initializers(model), _initializers(bundle)
    name = "layers.0.experts"
    inner, outer = after[f"{name}.inner"], after[f"{name}.outer"]
    for expert in range(EXPERTS):
        own = slice(24 * expert, 24 * expert + 24)
        assert (inner[expert, 0::2] == before[f"{name}.gate.weight"][:, own].T).all()
        assert (inner[expert, 1::2] == before[f"{name}.up.weight"][:, own].T).all()
        assert (outer[expert] == before[f"{name}.down.weight"][own].T).all()
    kept = before.keys() & after.keys()
    assert "layers.1.experts.router" in kept
    assert all((before[name] == after[name]).all() for name in kept)


def _initializers(folder: Path) -> dict[str, NDArray[Any]]:
    graph = onnx.load(folder / "step.onnx", load_external_data=False).graph
    return {one.name: numpy_helper.to_array(one, str(folder)) for one in graph.initializer}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_operator_and_portable_graph_agree(exports: Exports, family: str, precision: str) -> None:
    model, bundle = _folders(exports, family, precision)

    def unfuse(out: Path) -> None:
        shutil.copytree(bundle, out)
        for name in ("step.onnx", "weights.data"):
            shutil.copyfile(model / name, out / name)

    portable = exports.once(f"experts-{family}-{precision}-portable", unfuse)
    rng = np.random.default_rng(2)
    ids, visible = rng.integers(0, 290, (2, 16)), np.kron(np.eye(2), np.ones((16, 16)))
    fused, plain = (
        run_step(open_engine(folder), ids, np.arange(16), visible.astype(np.bool_))
        for folder in (bundle, portable)
    )
    assert is_finite(fused)
    limit = PRECISIONS[precision]
    assert np.abs(fused.entropy - plain.entropy).max() < limit
    assert np.abs(fused.keys - plain.keys).max() < limit
    if precision == "fp32":
        assert gap(fused, plain) < limit


def test_a_model_without_experts_is_copied_as_it_is(tiny_model: Path, tiny_bundle: Path) -> None:
    assert (tiny_bundle / "step.onnx").read_bytes() == (tiny_model / "step.onnx").read_bytes()
