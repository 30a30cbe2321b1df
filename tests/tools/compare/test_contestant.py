from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lopa.runtime.quantization import Quantization
from lopa.tools.compare.contestant import (
    Contestant,
    EngineSettings,
    caches_fault,
    open_bundle_side,
)
from lopa.tools.compare.thresholds import default_limits

QUANTIZED = Quantization("int8", (), {}, 1.0, 1, "ab", "cd", None)


@pytest.fixture
def side(tiny_bundle: Path) -> Contestant:
    return open_bundle_side(tiny_bundle, "A", EngineSettings(threads=1))


def quantized(side: Contestant, cache: str | None) -> Contestant:
    quantization = replace(QUANTIZED, cache=cache)
    return replace(side, manifest=replace(side.manifest, quantization=quantization))


def test_a_quantised_model_is_known_by_its_recipe(side: Contestant) -> None:
    assert side.precision == "fp32"
    other = quantized(side, None)
    assert other.precision == "int8"
    assert default_limits((side.precision, other.precision))["min_top1"] == 0.98
    assert caches_fault(side, other) is None


def test_steps_are_not_carried_over_to_integer_caches(side: Contestant) -> None:
    fault = caches_fault(side, quantized(side, "int8"))
    assert fault is not None
    assert fault.startswith("caches of float32 and int8")
