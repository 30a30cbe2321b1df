from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from lopa.graphs.instances import fix_dimensions
from lopa.graphs.targets.tensorrt.rewrite import rewrite
from lopa.runtime.contract import OUTPUT_NAMES, Instance, input_specs
from lopa.runtime.manifest import read_model

SHAPE = Instance(branches=3, window=8, context=16, rows=5)


def test_the_rewritten_graph_computes_the_same(tiny_model: Path, tmp_path: Path) -> None:
    """Only the entropy is computed differently; everything else is the same to the bit."""
    info = read_model(tiny_model).model
    graph = onnx.load(tiny_model / "step.onnx")
    changed = rewrite(graph)
    before = [node.op_type for node in graph.graph.node]
    after = [node.op_type for node in changed.graph.node]
    assert after.count("MatMul") == before.count("MatMul") - 1
    assert after.count("ReduceSum") == before.count("ReduceSum") + 1
    onnx.checker.check_model(changed)
    random = np.random.default_rng(0)
    feeds = {}
    for spec in input_specs(SHAPE, info.layers, info.kv_heads, info.head_dim, "float32"):
        if spec.dtype == "bool":
            feeds[spec.name] = np.ones(spec.shape, bool)
        elif spec.dtype == "int32":
            feeds[spec.name] = random.integers(0, 20, spec.shape, np.int32)
        else:
            feeds[spec.name] = random.random(spec.shape, np.float32) + 0.5
    found = []
    for number, model in enumerate((graph, changed)):
        path = tmp_path / f"{number}.onnx"
        onnx.save(fix_dimensions(model, SHAPE), path)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        found.append(dict(zip(OUTPUT_NAMES, session.run(None, feeds), strict=True)))
    first, second = found
    np.testing.assert_allclose(second.pop("entropy"), first.pop("entropy"), rtol=1e-5)
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value)


def test_a_graph_without_such_products_is_only_copied(tiny_model: Path) -> None:
    graph = rewrite(onnx.load(tiny_model / "step.onnx", load_external_data=False))
    again = rewrite(graph)
    assert again.SerializeToString() == graph.SerializeToString()
    assert again is not graph
