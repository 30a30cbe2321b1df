"""Calibrated models really compiled with TensorRT for RTX, which needs no GPU for that."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lopa.calibration.recipe import Recipe, Rule
from lopa.graphs.bundle import build_bundle
from lopa.graphs.targets.tensorrt.settings import TensorRtSettings
from lopa.runtime.contract import Instance

from .conftest import SETTINGS, Run, run

INSTANCES = (Instance(1, 8, 32, 8), Instance(3, 8, 32, 24))


def compiled(model: Path, out: Path) -> bytes:
    settings = TensorRtSettings(compute_capabilities=(89,))
    build_bundle(model, out, INSTANCES, target="tensorrt-rtx", settings=settings)
    return (out / "step.engine").read_bytes()


def test_int8_compiles(rtx: Any, int8: Run, tmp_path: Path) -> None:
    assert compiled(int8.out, tmp_path / "bundle")[:4] == b"vtrt"


@pytest.mark.parametrize("precision", ["int8-weight", "int4-weight"])
def test_weights_alone_compile(rtx: Any, tiny_model: Path, tmp_path: Path, precision: str) -> None:
    recipe = Recipe("r", (Rule("*", precision),))
    settings = replace(SETTINGS, samples=3, decodes=2, sensitivity_states=0)
    made = run(tiny_model, tmp_path, recipe, settings=settings)
    assert compiled(made.out, tmp_path / "bundle")[:4] == b"vtrt"
