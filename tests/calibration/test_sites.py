from __future__ import annotations

from pathlib import Path

import pytest
from lopa.calibration.sites import Scaled, StepGraph, find_sites
from lopa.runtime.contract import LopaError

from ..exported import Exports
from .conftest import Run


def test_sites_of_a_dream_model(tiny_graph: StepGraph) -> None:
    sites = find_sites(tiny_graph)
    assert [site.name for site in sites] == [
        *(
            f"layers.{layer}.{name}"
            for layer in range(2)
            for name in ("query+key+value", "output", "gate+up", "down")
        ),
        "head",
    ]
    before = {site.name: site.before for site in sites}
    assert before["layers.1.query+key+value"] == Scaled(("layers.1.attention_norm",))
    assert before["layers.1.gate+up"] == Scaled(("layers.1.mlp_norm",))
    assert before["layers.1.down"] == Scaled(("layers.1.up.weight",))
    assert before["layers.1.output"] is None  # its values are in the cache
    assert before["head"] == Scaled(("final_norm",))


def test_a_tied_head_is_the_embedding(exports: Exports) -> None:
    checkpoint = exports.checkpoint("tied", tied=True, block_size=8)
    graph = StepGraph(exports.model("tied", checkpoint), "step.onnx")
    (head,) = (site for site in find_sites(graph) if site.is_head)
    (product,) = head.products
    assert (product.name, product.weight, product.transposed) == ("head", "embed", True)
    assert head.before is None
    assert graph.matrix(product).shape == (64, 320)


def test_a_quantised_model_is_refused(int8: Run) -> None:
    with pytest.raises(LopaError, match="quantised already; calibrate the model it came from"):
        find_sites(StepGraph(Path(int8.out), "step.onnx"))
