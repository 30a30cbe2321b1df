from __future__ import annotations

import pytest
from lopa.runtime.contract import ContractError, TensorSpec
from lopa.runtime.engine_check import ReportedTensor, check_tensors, tensor_faults

SPECS = (TensorSpec("cache", "float32", (2, 2, 64, 16)), TensorSpec("rows", "int32", (8,)))


def test_any_size_fits_and_a_fixed_one_must_be_equal() -> None:
    cache = ReportedTensor("cache", "float32", (2, 2, None, 16))
    rows = ReportedTensor("rows", "int32", (8,))
    check_tensors("step.onnx", [cache, rows], {"a": SPECS})
    other = (TensorSpec("cache", "float32", (2, 2, 96, 8)), TensorSpec("rows", "int32", (9,)))
    assert tensor_faults("b", [cache, rows], other) == [
        "cache is [2, 2, any, 16], the manifest says [2, 2, any, 8]",
        "rows is [8], the manifest says [9] at b",
    ]


def test_every_difference_is_listed_once() -> None:
    reported = [
        ReportedTensor("cache", "float16", (2, 64, 16)),
        ReportedTensor("colour", "bool", ()),
    ]
    with pytest.raises(ContractError) as caught:
        check_tensors("step.onnx", reported, {"a": SPECS, "b": SPECS})
    assert str(caught.value) == (
        "step.onnx is not the engine of this manifest: it has no rows; it has colour, unknown to "
        "the contract; cache is float16, the manifest says float32; cache has 3 dimensions, the "
        "contract 4; build it again"
    )
