from __future__ import annotations

import pytest
from lopa.runtime.contract import (
    INPUT_NAMES,
    OUTPUT_NAMES,
    Instance,
    input_specs,
    output_specs,
    smallest_fit,
)

STEP = Instance(branches=3, window=16, context=64, rows=48)


def test_instance_names_and_rows() -> None:
    assert STEP.window_rows == 48
    assert STEP.name == "b3-w16-c64-r48"


@pytest.mark.parametrize(
    ("step", "held"),
    [
        (STEP, True),
        (Instance(1, 1, 1, 1), True),
        (Instance(4, 16, 64, 48), False),
        (Instance(3, 17, 64, 48), False),
        (Instance(3, 16, 65, 48), False),
        (Instance(3, 16, 64, 49), False),
    ],
)
def test_holds_compares_every_dimension(step: Instance, held: bool) -> None:
    assert STEP.holds(step) is held


def test_faults_list_every_number() -> None:
    assert STEP.faults() == []
    assert Instance(0, 8, -1, 8).faults() == [
        "branches is 0, expected a positive integer",
        "context is -1, expected a positive integer",
    ]
    assert Instance(2, 3, 8, 7).faults() == ["rows is 7, more than branches * window = 6"]


def test_smallest_fit_takes_the_fewest_rows_then_slots() -> None:
    few, wide = Instance(1, 64, 64, 64), Instance(5, 64, 64, 320)
    longer = Instance(1, 64, 128, 64)
    instances = (wide, longer, few)
    assert smallest_fit(instances, Instance(1, 20, 30, 5)) == few
    assert smallest_fit(instances, Instance(1, 20, 65, 5)) == longer
    assert smallest_fit(instances, Instance(2, 64, 64, 128)) == wide
    assert smallest_fit(instances, Instance(2, 64, 65, 128)) is None
    assert smallest_fit((), STEP) is None


def test_tensor_specs_follow_the_contract() -> None:
    inputs = input_specs(STEP, layers=2, kv_heads=4, head_dim=8, model_dtype="float16")
    outputs = output_specs(STEP, 2, 4, 8, candidates=5, model_dtype="float16")
    assert tuple(spec.name for spec in inputs) == INPUT_NAMES
    assert tuple(spec.name for spec in outputs) == OUTPUT_NAMES
    assert [(spec.dtype, spec.shape) for spec in inputs] == [
        ("int32", (3, 16)),
        ("int32", (3, 16)),
        ("bool", (48, 48)),
        ("bool", (64,)),
        ("float16", (2, 4, 64, 8)),
        ("float16", (2, 4, 64, 8)),
        ("int32", (48,)),
        ("float32", (1,)),
    ]
    assert [(spec.dtype, spec.shape) for spec in outputs] == [
        ("int32", (48, 5)),
        ("float32", (48, 5)),
        ("float32", (48,)),
        ("float16", (2, 4, 48, 8)),
        ("float16", (2, 4, 48, 8)),
    ]
