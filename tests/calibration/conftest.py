from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lopa.calibration.calibrate import Calibrated, Settings, calibrate
from lopa.calibration.recipe import PRESETS, Recipe
from lopa.calibration.sites import StepGraph
from lopa.runtime.manifest import read_model

SETTINGS = Settings(samples=10, decodes=6, new_tokens=16, context=64, sensitivity_states=3)


@dataclass(frozen=True)
class Run:
    """One calibration: what it returned, the folder it wrote and its work folder."""

    result: Calibrated
    out: Path
    work: Path


Calibrate = Callable[..., Run]


def prompts(count: int = 8, seed: int = 0) -> list[list[int]]:
    """Random prompts of ids below the special tokens."""
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 280, 6 + index).tolist() for index in range(count)]


def run(model: Path, folder: Path, recipe: Recipe | str = "int8", **changes: Any) -> Run:
    """Calibrate `model` into a folder below `folder`."""
    found = PRESETS[recipe] if isinstance(recipe, str) else recipe
    arguments: dict[str, Any] = {"prompts": prompts(), "settings": SETTINGS} | changes
    work = folder / "work"
    result = calibrate(model, folder / "out", recipe=found, work=work, **arguments)
    return Run(result, folder / "out", work)


@pytest.fixture(scope="session")
def int8(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The tiny model calibrated with the preset int8."""
    # Random weights are chaotic: every site is quantised here, whatever it changes.
    recipe = replace(PRESETS["int8"], agreement=0.0, drift=1.0, tokens=0.0)
    return run(tiny_model, tmp_path_factory.mktemp("int8"), recipe)


@pytest.fixture(scope="session")
def tiny_graph(tiny_model: Path) -> StepGraph:
    """The step graph of the tiny model."""
    return StepGraph(tiny_model, read_model(tiny_model).graph.file)
