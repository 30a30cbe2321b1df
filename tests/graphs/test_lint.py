from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from lopa.graphs.lint import FORBIDDEN, GraphError, check_graph, lint
from onnx import TensorProto, helper


@pytest.fixture
def graph(tiny_model: Path) -> onnx.ModelProto:
    return onnx.load(tiny_model / "step.onnx", load_external_data=False)


def test_the_exported_graph_is_clean(graph: onnx.ModelProto) -> None:
    assert lint(graph) == []
    check_graph(graph, "step.onnx")


@pytest.mark.parametrize("operator", sorted(FORBIDDEN))
def test_forbidden_operators(graph: onnx.ModelProto, operator: str) -> None:
    graph.graph.node.extend([helper.make_node(operator, ["x"], ["y"])] * 2)
    assert lint(graph) == [f"2 {operator} node(s): not capturable"]


@pytest.mark.parametrize("operator", ["Shape", "If", "Loop", "NonZero"])
def test_what_breaks_graph_capture_is_forbidden(operator: str) -> None:
    assert operator in FORBIDDEN


def test_opset_and_domains(graph: onnx.ModelProto) -> None:
    graph.opset_import[0].version = 19
    graph.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert lint(graph) == [
        "opset is 19, at most 18 is portable",
        "operator domain com.microsoft is not portable",
    ]


def test_names_must_be_those_of_the_contract(graph: onnx.ModelProto) -> None:
    graph.graph.input[0].name = "tokens"
    extra = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1])
    graph.graph.output.append(extra)
    inputs, outputs = lint(graph)
    assert inputs.startswith("inputs are tokens, position_ids, ")
    assert "the contract says input_ids, position_ids, " in inputs
    assert outputs.startswith("outputs are token_ids, log_probs, entropy, window_keys, ")
    assert "window_values, logits; the contract says " in outputs


def test_every_finding_is_in_the_error(graph: onnx.ModelProto) -> None:
    graph.opset_import[0].version = 23
    graph.graph.node.append(helper.make_node("NonZero", ["x"], ["y"]))
    with pytest.raises(GraphError) as caught:
        check_graph(graph, "here.onnx")
    assert str(caught.value) == (
        "here.onnx: opset is 23, at most 18 is portable; 1 NonZero node(s): not capturable; "
        "export it again with this lopa"
    )
