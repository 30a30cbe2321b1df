"""Engines really compiled with TensorRT for RTX: it needs no GPU for that, only to run them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from lopa.graphs.bundle import build_bundle
from lopa.graphs.instances import plan_instances
from lopa.graphs.targets.listener import BuildListener
from lopa.graphs.targets.tensorrt.settings import TensorRtSettings
from lopa.runtime.contract import Instance, LopaError
from lopa.runtime.manifest import BundleManifest, read_model, record_files, write_manifest
from lopa.tools.demo import run
from onnx import helper, numpy_helper

from ....export.tiny_family import CONFIGS, write_family
from ....exported import Exports
from ..quantised_graph import quantise

SMALL = (Instance(1, 8, 32, 8), Instance(3, 8, 32, 24))
DEMO = plan_instances(4, [32], [], [128])
CAPABILITIES = (80, 86, 89, 120)
# Order of the bits in the header's mask of GPU generations, as observed in 1.7; not documented.
MASK_BITS = (75, 80, 86, 89, 120, 121)
TABLE_BYTES = 16_384  # more than the tables of the outputs' names


@pytest.fixture(scope="module")
def demo_half(exports: Exports) -> Path:
    return exports.model("demo-fp16", run.CHECKPOINT, precision="fp16")


@pytest.fixture(scope="module")
def tiny_half(exports: Exports, tiny_checkpoint: Path) -> Path:
    return exports.model("tiny-half", tiny_checkpoint, precision="fp16", candidates=16)


@dataclasses.dataclass(frozen=True)
class Built:
    manifest: BundleManifest
    engine: bytes
    warnings: list[str]
    shares: list[float]


def build(
    model: Path, out: Path, instances: tuple[Instance, ...], *capabilities: int, **settings: Any
) -> Built:
    warnings: list[str] = []
    shares: list[float] = []
    manifest = build_bundle(
        model,
        out,
        instances,
        target="tensorrt-rtx",
        settings=TensorRtSettings(compute_capabilities=capabilities, **settings),
        listener=BuildListener(shares.append, warnings.append),
    )
    return Built(manifest, (out / "step.engine").read_bytes(), warnings, shares)


def header(engine: bytes) -> tuple[bytes, int, tuple[int, ...], tuple[int, ...]]:
    """Magic, size, library version and GPU generations."""
    mask = int.from_bytes(engine[32:36], "little")
    generations = tuple(sm for bit, sm in enumerate(MASK_BITS) if mask >> bit & 1)
    return engine[:4], int.from_bytes(engine[16:24], "little"), tuple(engine[24:28]), generations


@pytest.fixture(scope="module")
def demo_engine(rtx: Any, demo_half: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The demo model in half precision for all four GPU generations."""
    return build(demo_half, tmp_path_factory.mktemp("demo") / "bundle", DEMO, *CAPABILITIES)


def test_the_demo_model_compiles(rtx: Any, demo_half: Path, demo_engine: Built) -> None:
    stamp = demo_engine.manifest.engine.stamp
    assert stamp is not None
    assert stamp.compute_capabilities == CAPABILITIES
    assert stamp.profiles == tuple(instance.name for instance in DEMO)
    assert len(DEMO) == 2
    version = tuple(int(part) for part in rtx.__version__.split("."))
    assert demo_engine.manifest.engine.versions == {"tensorrt-rtx": rtx.__version__}
    assert stamp.graph_sha256.encode() in demo_engine.engine, "it can tell whose engine it is"
    magic, size, built_with, generations = header(demo_engine.engine)
    assert magic == b"vtrt"
    assert built_with == version
    assert generations == CAPABILITIES
    weights = read_model(demo_half).files["weights.data"].bytes
    assert size == len(demo_engine.engine)
    # Weights are there once; a profile adds kernels of a few MB.
    assert weights < len(demo_engine.engine) < weights + len(DEMO) * 8e6


def test_half_precision_raises_no_warning(demo_engine: Built) -> None:
    """Norms, softmax and log-sum-exp are float32 in the graph: nothing can overflow."""
    assert demo_engine.warnings == []


def test_progress_reaches_the_end(demo_engine: Built) -> None:
    shares = demo_engine.shares
    assert len(shares) > 100
    assert shares == sorted(shares)
    assert shares[-1] > 0.8


@pytest.mark.parametrize("capability", [75, *CAPABILITIES, 121])
def test_each_gpu_generation_alone(
    rtx: Any, demo_half: Path, tiny_half: Path, tmp_path: Path, capability: int
) -> None:
    model, instances = (demo_half, DEMO[:1]) if capability in CAPABILITIES else (tiny_half, SMALL)
    built = build(model, tmp_path / "bundle", instances, capability)
    assert header(built.engine)[3] == (capability,)
    assert built.warnings == []


def test_int8_weights_and_activations(rtx: Any, demo_half: Path, tmp_path: Path) -> None:
    assert quantise(demo_half, tmp_path / "model") == 43
    built = build(tmp_path / "model", tmp_path / "bundle", DEMO[:1], *CAPABILITIES)
    assert header(built.engine)[3] == CAPABILITIES
    assert built.warnings == []


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_other_precisions(
    rtx: Any,
    exports: Exports,
    tiny_checkpoint: Path,
    tiny_model: Path,
    tmp_path: Path,
    precision: str,
) -> None:
    model = tiny_model
    if precision == "bf16":
        model = exports.model("tiny-bfloat", tiny_checkpoint, precision=precision, candidates=16)
    built = build(model, tmp_path / "bundle", SMALL, *CAPABILITIES)
    assert built.manifest.graph.precision == precision
    assert built.warnings == []
    if precision == "bf16":
        assert built.manifest.model_dtype == "bfloat16"


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_compiles(rtx: Any, exports: Exports, tmp_path: Path, family: str) -> None:
    checkpoint = exports.once(f"{family}-checkpoint", lambda out: write_family(out, family))
    model = exports.model(f"{family}-half", checkpoint, precision="fp16", candidates=16)
    built = build(model, tmp_path / "bundle", SMALL[1:], 89)
    assert len(built.engine) > read_model(model).files["weights.data"].bytes
    assert built.warnings == []


def test_two_builds_differ_in_the_order_of_outputs_at_most(
    rtx: Any, tiny_half: Path, tmp_path: Path
) -> None:
    """The library lists the outputs in the order of their addresses in memory; the rest is equal.

    Between 0 and about 3 kB differ, of 9 MB.
    """
    first, second = (
        np.frombuffer(build(tiny_half, tmp_path / name, SMALL, 89).engine, np.uint8)
        for name in "ab"
    )
    assert len(first) == len(second)
    assert (first != second).sum() < TABLE_BYTES < len(first) / 100


def test_settings_are_stamped(rtx: Any, tiny_half: Path, tmp_path: Path) -> None:
    built = build(
        tiny_half,
        tmp_path / "bundle",
        SMALL[:1],
        89,
        workspace=1 << 30,
        optimization_level=0,
        profiling_verbosity="detailed",
    )
    assert built.manifest.engine.stamp is not None
    assert built.manifest.engine.stamp.settings == {
        "workspace_bytes": "1073741824",
        "optimization_level": "0",
        "profiling_verbosity": "detailed",
    }


def test_too_small_a_workspace_is_one_line(rtx: Any, tiny_half: Path, tmp_path: Path) -> None:
    with pytest.raises(LopaError, match=r"cannot build .*: .*within workspace limit"):
        build(tiny_half, tmp_path / "bundle", SMALL[:1], 89, workspace=1)
    assert list(tmp_path.iterdir()) == []


def test_mixed_types_are_a_parser_error_with_the_node(
    rtx: Any, tiny_half: Path, tmp_path: Path
) -> None:
    """The cast of the logits is taken out: half precision meets float32."""
    manifest = read_model(tiny_half)
    model = tmp_path / "model"
    model.mkdir()
    for name in manifest.files:
        (model / name).write_bytes((tiny_half / name).read_bytes())
    graph = onnx.load(model / "step.onnx", load_external_data=False)
    (divide,) = (node for node in graph.graph.node if "temperature" in node.input)
    (cast,) = (node for node in graph.graph.node if node.output[0] == divide.input[0])
    assert cast.op_type == "Cast"
    divide.input[0] = cast.input[0]
    graph.graph.node.remove(cast)
    onnx.save(graph, model / "step.onnx")
    write_manifest(
        model, dataclasses.replace(manifest, files=record_files(model, list(manifest.files)))
    )
    with pytest.raises(
        LopaError,
        match=rf"TensorRT for RTX cannot parse .*: node {divide.name} \(Div\): .*must have same "
        "input types",
    ) as fault:
        build(model, tmp_path / "bundle", SMALL[:1], 89)
    assert "/_src/" not in str(fault.value)
    assert "\n" not in str(fault.value)


def test_the_lint_knows_the_limit_of_topk(rtx: Any) -> None:
    """The library still refuses what the lint refuses, and takes what it takes."""

    def compiles(count: int) -> bool:
        size = numpy_helper.from_array(np.array([count], np.int64), "k")
        graph = helper.make_graph(
            [helper.make_node("TopK", ["x", "k"], ["y", "i"])],
            "g",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 9000])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, count])],
            [size],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        log = rtx.Logger(rtx.Logger.INTERNAL_ERROR)
        builder = rtx.Builder(log)
        network = builder.create_network(0)
        assert rtx.OnnxParser(network, log).parse(model.SerializeToString())
        config = builder.create_builder_config()
        return builder.build_serialized_network(network, config) is not None

    assert (compiles(3840), compiles(3841)) == (True, False)
