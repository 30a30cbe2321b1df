from __future__ import annotations

from collections import Counter
from pathlib import Path

from lopa.calibration.states import RARE, TYPICAL, RecordingEngine, StateFolder, Stratum
from lopa.calibration.trajectories import (
    Decodes,
    calibration_bundle,
    rare_settings,
    typical_settings,
)
from lopa.runtime.engines.onnxruntime.program import OnnxRuntimeProgram
from lopa.runtime.manifest import read_model

from .conftest import prompts


def recorder(model: Path, folder: Path) -> RecordingEngine:
    bundle = calibration_bundle(read_model(model), 64)
    engine = OnnxRuntimeProgram(model, bundle).decode_state()
    return RecordingEngine(engine, bundle.model.mask_token_id, StateFolder(folder))


def record(model: Path, folder: Path, kind: str, wanted: int, most: int) -> list[str]:
    """Decode four prompts; returns the names and checks how many steps are in memory."""
    bundle = calibration_bundle(read_model(model), 64)
    settings = typical_settings if kind == TYPICAL else rare_settings
    options = settings(bundle.model.window_attention)
    decodes = Decodes.plan(bundle, prompts(4), options, 16, 4)
    engine = recorder(model, folder)
    for number in range(4):
        engine.start(kind, number, wanted)
        decodes.run(number, engine, bundle)
        assert len(engine._kept) <= most
        engine.save()
    return engine.states.names()


def test_typical_steps_are_the_same_in_every_run(tiny_model: Path, tmp_path: Path) -> None:
    first = record(tiny_model, tmp_path / "a", TYPICAL, 2, most=2)
    assert first == record(tiny_model, tmp_path / "b", TYPICAL, 2, most=2)
    assert Counter(name.split("-")[1] for name in first) == {f"{n:05d}": 2 for n in range(4)}


def test_all_steps_are_kept_when_all_are_wanted(tiny_model: Path, tmp_path: Path) -> None:
    names = record(tiny_model, tmp_path, TYPICAL, 10_000, most=10_000)
    steps: dict[str, list[int]] = {}
    for name in names:
        _, prompt, step, _ = name.split("-", 3)
        steps.setdefault(prompt, []).append(int(step))
    assert all(found == list(range(len(found))) for found in steps.values())


def test_rare_steps_differ_in_kind(tiny_model: Path, tmp_path: Path) -> None:
    names = record(tiny_model, tmp_path, RARE, 3, most=3)
    for number in range(4):
        kinds = [name.split("-", 3)[3] for name in names if f"-{number:05d}-" in name]
        assert len(kinds) == len(set(kinds))
    assert len({name.split("-", 3)[3] for name in names}) >= 6


def test_labels() -> None:
    assert Stratum(True, 1, 3).label == "prefill-b1-m3"
    assert Stratum(False, 5, 9).label == "cached-b5-m9"
