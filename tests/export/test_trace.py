"""What the exporter writes: portable, complete, and free of the machine it was made on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
from lopa.export.source import open_source
from lopa.export.spec import parameter_shapes
from lopa.export.trace import OPSET, trace
from lopa.runtime.contract import INPUT_NAMES, OUTPUT_NAMES, Instance, input_specs, output_specs
from lopa.runtime.manifest import read_model
from onnx import TensorProto

from ..exported import Exports
from ..runtime.dense_model import DenseModel
from ..runtime.engine_steps import open_engine, run_step

VARIANTS = ("tiny", "tied", "half")
TYPES = {"fp32": TensorProto.FLOAT, "fp16": TensorProto.FLOAT16}


@pytest.fixture(scope="session")
def tied_checkpoint(exports: Exports) -> Path:
    return exports.checkpoint("tied", tied=True, block_size=8, seed=4)


@pytest.fixture(scope="session")
def checkpoints(tiny_checkpoint: Path, tied_checkpoint: Path) -> dict[str, Path]:
    return {"tiny": tiny_checkpoint, "tied": tied_checkpoint, "half": tiny_checkpoint}


@pytest.fixture(scope="session")
def models(exports: Exports, tiny_model: Path, checkpoints: dict[str, Path]) -> dict[str, Path]:
    return {
        "tiny": tiny_model,
        "tied": exports.model("tied", checkpoints["tied"]),
        "half": exports.model("half", checkpoints["half"], precision="fp16", candidates=16),
    }


def _graph(folder: Path) -> onnx.ModelProto:
    return onnx.load(folder / "step.onnx", load_external_data=False)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_parameter_is_an_initializer_of_its_own(
    models: dict[str, Path], checkpoints: dict[str, Path], variant: str
) -> None:
    spec = open_source(checkpoints[variant]).spec
    stored = {
        tensor.name: tuple(tensor.dims) for tensor in _graph(models[variant]).graph.initializer
    }
    shapes = parameter_shapes(spec)
    assert {name: stored.get(name) for name in shapes} == shapes
    assert ("head" in stored) == (variant != "tied")
    others = [np.prod(shape) for name, shape in stored.items() if name not in shapes]
    assert max(others) <= spec.info.vocab_size  # no transposed or folded copy of a matrix


@pytest.mark.parametrize("variant", VARIANTS)
def test_opset_operators_and_types(models: dict[str, Path], variant: str) -> None:
    model = _graph(models[variant])
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", OPSET)]
    assert OPSET == 18
    assert not model.functions
    assert {node.domain for node in model.graph.node} == {""}
    assert not {node.op_type for node in model.graph.node} & {"Shape", "If", "Loop", "NonZero"}
    manifest = read_model(models[variant])
    info, dims = manifest.model, (manifest.model.layers, manifest.model.kv_heads, 16)
    dtype = {"fp32": "float32", "fp16": "float16"}[manifest.graph.precision]
    instance = Instance(1, 2, 3, 2)
    for values, names, specs in (
        (model.graph.input, INPUT_NAMES, input_specs(instance, *dims, dtype)),
        (model.graph.output, OUTPUT_NAMES, output_specs(instance, *dims, info.candidates, dtype)),
    ):
        assert tuple(value.name for value in values) == names
        types = [value.type.tensor_type.elem_type for value in values]
        assert types == [onnx.helper.np_dtype_to_tensor_dtype(np.dtype(s.dtype)) for s in specs]


def test_half_precision_keeps_norm_weights_and_reductions_in_float32(
    models: dict[str, Path],
) -> None:
    graph = onnx.shape_inference.infer_shapes(_graph(models["half"]), strict_mode=True).graph
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    assert types["embed"] == types["layers.0.query.weight"] == TensorProto.FLOAT16
    assert types["final_norm"] == types["layers.1.mlp_norm"] == TensorProto.FLOAT
    inner = {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
    counts = dict.fromkeys(("ReduceMean", "Softmax", "Pow", "Sqrt"), 0)
    for node in graph.node:
        if node.op_type in counts:
            counts[node.op_type] += 1
            assert inner[node.output[0]] == TensorProto.FLOAT, node.name
    assert counts == {"ReduceMean": 5, "Softmax": 2, "Pow": 5, "Sqrt": 5}


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_trace_of_the_machine(models: dict[str, Path], variant: str) -> None:
    data = (models[variant] / "step.onnx").read_bytes()
    root = str(Path(__file__).resolve().parents[2]).encode()
    for text in (root, b".py", b"backbone", b"site-packages", b"stack_trace", b"/home", b"/tmp"):
        assert text not in data, text


def test_a_tied_head_is_no_second_matrix(models: dict[str, Path], tied_checkpoint: Path) -> None:
    info = open_source(tied_checkpoint).spec.info
    size = (models["tied"] / "weights.data").stat().st_size
    untied = (models["tiny"] / "weights.data").stat().st_size
    assert untied - size == info.vocab_size * info.hidden_size * 4
    products = [node for node in _graph(models["tied"]).graph.node if "embed" in node.input]
    assert sorted(node.op_type for node in products) == ["Gather", "Gemm"]


@pytest.mark.parametrize(("variant", "tolerance"), [("tiny", 2e-4), ("tied", 2e-4), ("half", 0.02)])
def test_the_saved_graph_equals_dense_attention(
    exports: Exports,
    models: dict[str, Path],
    checkpoints: dict[str, Path],
    variant: str,
    tolerance: float,
) -> None:
    dense = DenseModel(checkpoints[variant])
    engine = open_engine(exports.bundle(f"traced-{variant}", models[variant], 1, (16,), (32,)))
    ids = np.random.default_rng(1).integers(0, 290, (2, 16))
    visible = np.kron(np.eye(2), np.ones((16, 16))).astype(np.bool_)
    step = run_step(engine, ids, np.arange(16), visible)
    exact = dense(ids.reshape(-1), np.tile(np.arange(16), 2), visible)
    picked = np.take_along_axis(exact.log_probs, step.token_ids.astype(np.intp), 1)
    assert np.abs(step.log_probs - picked).max() < tolerance
    assert np.abs(step.keys - exact.keys).max() < tolerance
    assert np.abs(step.values - exact.values).max() < tolerance
    first, second = -np.sort(-exact.log_probs[:, :293], 1)[:, :2].T
    clear = first - second > 4 * tolerance
    assert clear.mean() > 0.7
    agree = step.token_ids[:, 0] == exact.log_probs[:, :293].argmax(1)
    assert agree[clear].all()  # fp16 and fp32 choose the same tokens


def test_weights_are_not_read_while_tracing(tmp_path: Path, tiny_checkpoint: Path) -> None:
    """Tracing a model of 30 GB holds none of it: parameters have one element of storage."""
    spec = open_source(tiny_checkpoint).spec
    info = dataclasses.replace(
        spec.info,
        layers=1,
        hidden_size=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        intermediate_size=1_000_000,
    )
    model = trace(dataclasses.replace(spec, info=info), "fp16")
    gate = model.graph.initializers["layers.0.gate.weight"].const_value
    assert gate is not None
    assert gate.nbytes == 2 * 4096 * 1_000_000
