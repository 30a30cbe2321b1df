from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from lopa.calibration.plan import SitePlan, migration
from lopa.calibration.rewrite import rewrite
from lopa.calibration.session import open_session
from lopa.calibration.sites import Site, StepGraph, find_sites
from lopa.calibration.states import StateFolder
from lopa.graphs.targets.onnxruntime.integers import use_integer_kernels
from lopa.graphs.weight_file import inline_pieces
from numpy.typing import NDArray

from ..exported import Exports
from .conftest import Run


def outputs(
    graph: StepGraph, plans: Sequence[SitePlan], states: Path, embedding: str = "model"
) -> list[NDArray[Any]]:
    """Outputs of the rewritten graph on the first recorded step."""
    rewritten = rewrite(graph, plans, embedding)
    inline_pieces(rewritten.model, rewritten.pieces)
    return run(rewritten.model, graph, states)


def run(model: onnx.ModelProto, graph: StepGraph, states: Path) -> list[NDArray[Any]]:
    recorded = StateFolder(states)
    found = open_session(model, graph.folder).run(None, recorded.load(recorded.names()[0]))
    return list(found)


def plans_of(sites: Sequence[Site], precision: str, **changes: Any) -> list[SitePlan]:
    return [
        SitePlan(site, {product.name: precision for product in site.products}, **changes)
        for site in sites
    ]


def test_migrated_scales_keep_the_function(tiny_graph: StepGraph, int8: Run) -> None:
    generator = np.random.default_rng(0)
    plans = []
    for site in find_sites(tiny_graph):
        channels = None
        if site.before is not None:
            weights = [tiny_graph.matrix(product) for product in site.products]
            largest = np.exp(generator.normal(0, 2, len(weights[0]))).astype(np.float32)
            channels = migration(largest, weights, 0.5)
            assert channels.max() / channels.min() > 10
        precisions = {product.name: "model" for product in site.products}
        plans.append(SitePlan(site, precisions, channels=channels))
    states = int8.work / "states"
    for found, expected in zip(
        outputs(tiny_graph, plans, states), outputs(tiny_graph, [plans[1]], states), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_scales_of_the_migration() -> None:
    largest = np.array([4, 1, 0], np.float32)
    weight = np.array([[1.0, -1.0], [0.5, 2.0], [3.0, 0.0]], np.float32)
    scale = migration(largest, [weight], 0.5)
    assert scale[0] / scale[1] == pytest.approx(2 / np.sqrt(1 / 2))  # sqrt(4 / 1) : sqrt(1 / 2)
    assert scale[2] == 1  # a channel that is always zero
    assert scale[0] * scale[1] == pytest.approx(1)  # around one


@pytest.mark.parametrize("precision", ["int8-weight", "int4-weight"])
def test_stored_weights_alone_change_little(
    tiny_graph: StepGraph, int8: Run, precision: str
) -> None:
    states = int8.work / "states"
    plans = plans_of(find_sites(tiny_graph), precision)
    exact = run(tiny_graph.model, tiny_graph, states)
    found = outputs(tiny_graph, plans, states)
    error = np.abs(found[3] - exact[3]).mean() / np.abs(exact[3]).mean()
    assert 0 < error < {"int8-weight": 0.03, "int4-weight": 0.4}[precision]


@pytest.mark.parametrize(("embedding", "limit"), [("fp16", 1e-3), ("int8-weight", 2e-2)])
def test_embedding_table(tiny_graph: StepGraph, int8: Run, embedding: str, limit: float) -> None:
    states = int8.work / "states"
    plans = plans_of(find_sites(tiny_graph), "model")
    exact = run(tiny_graph.model, tiny_graph, states)
    found = outputs(tiny_graph, plans, states, embedding)
    error = np.abs(found[3] - exact[3]).mean() / np.abs(exact[3]).mean()
    assert 0 < error < limit


def test_integer_kernels_compute_what_the_portable_graph_says(
    tiny_graph: StepGraph, int8: Run
) -> None:
    states = int8.work / "states"
    portable = onnx.load(int8.out / "step.onnx")
    fused = onnx.ModelProto()
    fused.CopyFrom(portable)
    assert use_integer_kernels(fused)
    for found, expected in zip(
        run(fused, tiny_graph, states), run(portable, tiny_graph, states), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=2e-4)


def test_tied_head_and_embedding_share_their_integers(exports: Exports, int8: Run) -> None:
    checkpoint = exports.checkpoint("tied", tied=True, block_size=8)
    graph = StepGraph(exports.model("tied", checkpoint), "step.onnx")
    plans = plans_of(find_sites(graph), "int8", largest=6.0)
    rewritten = rewrite(graph, plans, "fp16")
    inline_pieces(rewritten.model, rewritten.pieces)
    stored = {tensor.name: tensor for tensor in rewritten.model.graph.initializer}
    assert stored["embed"].data_type == onnx.TensorProto.INT8
    states = int8.work / "states"
    portable = run(rewritten.model, graph, states)
    use_integer_kernels(rewritten.model)
    fused = run(rewritten.model, graph, states)
    for found, expected in zip(fused, portable, strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-4)


def test_half_precision_graph(exports: Exports, tiny_checkpoint: Path, int8: Run) -> None:
    graph = StepGraph(exports.model("half", tiny_checkpoint, precision="fp16"), "step.onnx")
    plans = plans_of(find_sites(graph), "int8", largest=6.0)
    rewritten = rewrite(graph, plans)
    inline_pieces(rewritten.model, rewritten.pieces)
    assert rewritten.model.opset_import[0].version == 19
    feeds = StateFolder(int8.work / "states").load(StateFolder(int8.work / "states").names()[0])
    feeds |= {name: feeds[name].astype(np.float16) for name in ("cache_keys", "cache_values")}
    portable = open_session(rewritten.model, graph.folder).run(None, feeds)
    use_integer_kernels(rewritten.model)
    fused = open_session(rewritten.model, graph.folder).run(None, feeds)
    wide = [values.astype(np.float32) for values in (fused[3], portable[3])]
    assert np.abs(wide[0] - wide[1]).mean() < 0.03 * np.abs(wide[1]).mean()
