"""The layer and the operation that differ are named, one layer's weights in memory at a time."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from lopa.runtime.contract import LopaError
from lopa.runtime.engines.onnxruntime.program import OnnxRuntimeProgram
from lopa.runtime.engines.single import SingleState
from lopa.runtime.manifest import read_bundle
from lopa.runtime.session import Session
from lopa.tools.compare import bisect as module
from lopa.tools.compare.bisect import BisectReport, bisect
from lopa.tools.compare.engine_runner import EngineRunner
from lopa.tools.compare.feeds import Feed
from lopa.tools.compare.layer_graph import LayerGraph
from lopa.tools.compare.recording import RecordingEngine, Spread

from ...export.tiny_family import write_family
from ...exported import Exports
from .conftest import PROMPTS, Bend


def record(bundle: Path, prompts: Sequence[list[int]], **settings: Any) -> list[Feed]:
    """At most four steps of decoding."""
    manifest = read_bundle(bundle)
    spread = Spread(4)
    engine = RecordingEngine(OnnxRuntimeProgram(bundle, manifest, threads=1).decode_state(), spread)
    session = Session(bundle, manifest, SingleState(engine))
    for prompt in prompts:
        session.generate(prompt_ids=prompt, **settings)
    return [step.feed for step in spread.chosen]


@pytest.fixture(scope="module")
def feeds(tiny_bundle: Path) -> list[Feed]:
    return record(tiny_bundle, PROMPTS, max_new_tokens=16)


def walk(one: Path, two: Path, feeds: Sequence[Feed], tolerance: float = 1e-4) -> BisectReport:
    return bisect((one / "step.onnx", two / "step.onnx"), feeds, tolerance, threads=1)


def test_the_parts_make_the_whole(tiny_bundle: Path, feeds: list[Feed]) -> None:
    manifest = read_bundle(tiny_bundle)
    graph = LayerGraph(tiny_bundle / "step.onnx")
    assert [cut.name for cut in graph.cuts] == ["embed", "layers.0", "layers.1", "head"]
    streams: list[Any] = [None] * len(feeds)
    for cut in graph.cuts:
        streams = [left[0] for left in module._run(graph, cut, feeds, streams, False, 1)]
    runner = EngineRunner(
        lambda: OnnxRuntimeProgram(tiny_bundle, manifest, threads=1).decode_state(),
        manifest,
        "whole",
    )
    with runner:
        for feed, log_probs in zip(feeds, streams, strict=True):
            assert np.allclose(runner.infer(feed)["log_probs"], log_probs, atol=1e-5)


def test_a_part_holds_the_weights_of_its_layer_alone(tiny_bundle: Path) -> None:
    graph = LayerGraph(tiny_bundle / "step.onnx")
    every = set()
    for cut in graph.cuts:
        part = graph.part(cut, points=True)
        large = {item.name for item in part.graph.initializer if len(item.dims) == 2}
        prefix = {"embed": "embed", "head": "head"}.get(cut.name, f"{cut.name}.")
        assert large, cut.name
        assert all(name.startswith(prefix) for name in large)
        every |= large
    whole = onnx.load(tiny_bundle / "step.onnx", load_external_data=False).graph.initializer
    assert every == {item.name for item in whole if len(item.dims) == 2}


@pytest.mark.parametrize(
    ("weight", "layer", "operation"),
    [
        ("embed", "embed", "embed"),
        ("layers.0.attention_norm", "layers.0", "attention_norm"),
        ("layers.0.value.bias", "layers.0", "value"),
        ("layers.0.down.weight", "layers.0", "down"),
        ("layers.1.query.weight", "layers.1", "query"),
        ("layers.1.output.weight", "layers.1", "output"),
        ("layers.1.mlp_norm", "layers.1", "mlp_norm"),
        ("layers.1.up.weight", "layers.1", "up"),
        ("final_norm", "head", "final_norm"),
        ("head", "head", "head"),
    ],
)
def test_the_weight_that_differs_is_found(
    tiny_bundle: Path, bent: Bend, feeds: list[Feed], weight: str, layer: str, operation: str
) -> None:
    report = walk(tiny_bundle, bent(weight), feeds)
    assert report.parting is not None
    assert (report.parting.layer, report.parting.operation) == (layer, operation)
    assert report.parting.error.relative > 1e-3
    assert report.layers[-1].name == layer
    before = [error.total.relative for error in report.layers[:-1]]
    assert before == [0] * len(before)


def test_equal_bundles_do_not_part(tiny_bundle: Path, feeds: list[Feed]) -> None:
    report = walk(tiny_bundle, tiny_bundle, feeds, tolerance=0.0)
    assert report.parting is None
    assert [row.total.relative for row in report.layers] == [0, 0, 0, 0]


def test_rounding_adds_up_along_the_layers(
    tiny_bundle: Path, half_bundle: Path, feeds: list[Feed]
) -> None:
    report = walk(tiny_bundle, half_bundle, feeds, tolerance=0.01)
    assert report.parting is None
    assert all(1e-5 < row.total.relative < 0.01 for row in report.layers)
    second = report.layers[2]
    assert second.total.relative > second.own.relative


def test_nan_parts(tiny_bundle: Path, feeds: list[Feed]) -> None:
    broken = [{**feed, "cache_keys": np.full_like(feed["cache_keys"], np.nan)} for feed in feeds]
    report = walk(tiny_bundle, tiny_bundle, broken)
    assert report.parting is not None
    assert report.parting.layer == "layers.0"


def test_routed_experts_are_one_operation(exports: Exports) -> None:
    bundles = []
    for precision in ("fp32", "fp16"):  # shared with tests/graphs/test_onnxruntime_experts.py
        name = f"experts-sdar_moe-{precision}"
        checkpoint = exports.once(
            f"{name}-checkpoint", lambda out: write_family(out, "sdar_moe", seed=9)
        )
        model = exports.model(name, checkpoint, precision=precision, candidates=16)
        bundles.append(exports.bundle(name, model, 1, (16,), (32,)))
    graph = LayerGraph(bundles[0] / "step.onnx")
    operators = [point.operator for cut in graph.cuts for point in cut.points]
    assert operators.count("MoE") == 2
    feeds = record(bundles[0], PROMPTS[:1], strategy="block-diffusion", max_new_tokens=8)
    report = walk(bundles[0], bundles[1], feeds, tolerance=0.05)
    assert report.parting is None
    assert [row.name for row in report.layers] == ["embed", "layers.0", "layers.1", "head"]


def quantise_down(bundle: Path, folder: Path) -> Path:
    """A copy of a bundle whose last `down` product has integer weights and activations."""
    shutil.copytree(bundle, folder)
    model = onnx.load(folder / "step.onnx")
    name, graph = "layers.1.down", model.graph
    (tensor,) = (item for item in graph.initializer if item.name == f"{name}.weight")
    (product,) = (node for node in graph.node if tensor.name in node.input)
    weight = onnx.numpy_helper.to_array(tensor)
    scale = np.abs(weight).max(0) / 127
    tensor.CopyFrom(
        onnx.numpy_helper.from_array((weight / scale).round().astype(np.int8), f"{name}.weight")
    )
    graph.initializer.extend(
        onnx.numpy_helper.from_array(np.array(values), stored)
        for stored, values in (
            (f"{name}.weight_scale", scale.astype(np.float32)),
            (f"{name}.input.scale", np.float32(0.25)),
            ("zero", np.int8(0)),
        )
    )
    node, source = onnx.helper.make_node, product.input[0]
    pair = [f"{name}.input.scale", "zero"]
    place = list(graph.node).index(product)
    product.input[:] = ["restored", "unpacked"]
    for added in (
        node("DequantizeLinear", [tensor.name, f"{name}.weight_scale"], ["unpacked"], axis=1),
        node("DequantizeLinear", ["integers", *pair], ["restored"]),
        node("QuantizeLinear", [source, *pair], ["integers"]),
    ):
        graph.node.insert(place, added)
    onnx.save(model, folder / "step.onnx")
    return folder


def test_a_quantised_product_is_found_behind_its_pairs(
    tiny_bundle: Path, feeds: list[Feed], tmp_path: Path
) -> None:
    other = quantise_down(tiny_bundle, tmp_path / "integers")
    graph = LayerGraph(other / "step.onnx")
    points = {point.operation: point.operator for point in graph.cuts[2].points}
    assert points["activation"] == "Mul"  # what was quantised, not its integers
    assert points["down"] == "MatMul"
    report = walk(tiny_bundle, other, feeds, tolerance=1e-3)
    assert report.parting is not None
    assert (report.parting.layer, report.parting.operation) == ("layers.1", "down")
    errors = {point.operation: point.error.relative for point in report.points}
    assert errors["activation"] == 0
    paths = (tiny_bundle / "step.onnx", other / "step.onnx")
    shorter = bisect(paths, feeds, 1e-3, threads=1, rescaled=True)
    assert shorter.parting == report.parting
    left_out = errors.keys() - {point.operation for point in shorter.points}
    assert left_out == {"attention_norm", "attention", "mlp_norm", "up", "activation"}


def test_a_graph_without_canonical_names_is_refused(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    graph = onnx.helper.make_graph([node], "g", value[:1], value[1:])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "step.onnx")
    with pytest.raises(LopaError, match="no layers found by the names of the weights"):
        LayerGraph(tmp_path / "step.onnx")
