from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lopa.calibration import calibrate as module
from lopa.calibration.recipe import PRESETS, Recipe, Rule
from lopa.graphs.bundle import build_bundle
from lopa.graphs.instances import plan_instances
from lopa.runtime.contract import LopaError
from lopa.runtime.manifest import model_hash, read_model, verify_files
from lopa.runtime.session import open_bundle

from .conftest import SETTINGS, Run, prompts, run


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_quantised_model_folder(int8: Run, tiny_model: Path) -> None:
    manifest = read_model(int8.out)
    verify_files(int8.out, manifest.files)
    before = read_model(tiny_model)
    assert manifest == int8.result.manifest
    assert (manifest.model, manifest.source) == (before.model, before.source)
    found = manifest.quantization
    assert found is not None
    assert found.counts == {"fp16": 1, "int8": 15}
    assert found.layers["layers.0.down"].method in ("minmax", "percentile", "entropy")
    assert found.layers["embed"].precision == "fp16"
    assert found.rules == ("embed -> fp16", "* -> int8, auto, smooth auto")
    assert (found.model_sha256, found.states) == (model_hash(before), 7)
    assert found.prompts_sha256 == module.prompts_hash(prompts())
    assert not int8.result.findings
    assert manifest.files["weights.data"].bytes < 0.4 * before.files["weights.data"].bytes


def test_recorded_steps_differ_in_kind(int8: Run) -> None:
    kinds = list(int8.result.strata)
    assert sum(int8.result.strata.values()) == 10
    assert any(kind.startswith("prefill-b1-") for kind in kinds)
    assert any(kind.startswith("cached-b") and not kind.startswith("cached-b1") for kind in kinds)
    assert len({kind.rpartition("-m")[2] for kind in kinds}) >= 4  # mask ratios


def test_bundle_of_a_quantised_model_decodes(int8: Run, tmp_path: Path) -> None:
    instances = plan_instances(4, [48], [48], [64])
    manifest = build_bundle(int8.out, tmp_path / "bundle", instances)
    assert manifest.quantization == int8.result.manifest.quantization
    result = open_bundle(tmp_path / "bundle").generate(prompt_ids=prompts()[0], max_new_tokens=16)
    assert len(result.token_ids) == 16


def test_stopped_run_ends_with_the_same_bytes(
    int8: Run, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lopa.calibration.ranges.SAVE_SECONDS", -1.0)
    recipe = replace(PRESETS["int8"], agreement=0.0, drift=1.0, tokens=0.0)
    stages = (
        "decoding the prompts",
        "decoding for rare steps",
        "reading activations",
        "quantising one site at a time",
    )
    for stage in stages:

        def stop(now: str, done: int, total: int, stage: str = stage) -> None:
            if now == stage and done >= 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run(tiny_model, tmp_path, recipe, progress=stop)
        assert not (tmp_path / "out").exists()
    assert json.loads((tmp_path / "work" / "ranges.json").read_text())["states"] == 10
    assert len(json.loads((tmp_path / "work" / "sensitivity.json").read_text())) == 3
    again = run(tiny_model, tmp_path, recipe)
    assert names(again.out) == names(int8.out)
    for name in names(int8.out):
        assert (again.out / name).read_bytes() == (int8.out / name).read_bytes(), name
    for name in ("ranges.json", "sensitivity.json", "answers.json"):
        assert (again.work / name).read_bytes() == (int8.work / name).read_bytes(), name


@pytest.mark.parametrize("what", ["model", "prompts", "settings"])
def test_ranges_of_another_run_are_refused(
    int8: Run, tiny_model: Path, tmp_path: Path, what: str
) -> None:
    shutil.copytree(int8.work, tmp_path / "work")
    path = tmp_path / "work" / "ranges.json"
    changes: dict[str, dict[str, Any]] = {
        "prompts": {"prompts": prompts(seed=1)},
        "settings": {"settings": replace(SETTINGS, new_tokens=24)},
    }
    quantization = int8.result.manifest.quantization
    assert quantization is not None
    if what == "model":
        path.write_text(path.read_text().replace(quantization.model_sha256, "ab" * 32))
    with pytest.raises(LopaError, match=r"add --force .*or choose another --work") as caught:
        run(tiny_model, tmp_path, **changes.get(what, {}))
    made_for = {
        "model": "another model",
        "prompts": "other prompts",
        "settings": "other settings (new tokens: there 16, here 24)",
    }
    assert f"ranges.json was made for {made_for[what]}; add --force" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_force_starts_again(int8: Run, tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(int8.work, tmp_path / "work")
    recipe = replace(PRESETS["int8-weight"], agreement=0.0, drift=1.0, tokens=0.0)
    settings = replace(SETTINGS, samples=6, decodes=2, sensitivity_states=0)
    found = run(tiny_model, tmp_path, recipe, settings=settings, force=True)
    assert sum(found.result.strata.values()) == 6
    assert json.loads((found.work / "ranges.json").read_text())["settings"]["samples"] == 6
    assert len(json.loads((found.work / "answers.json").read_text())) == 2
    assert not (found.work / "sensitivity.json").exists()


def test_damaged_ranges_are_refused(int8: Run, tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "ranges.json").write_text('{"version": 1')
    with pytest.raises(LopaError, match=r"ranges.json is damaged .*add --force"):
        run(tiny_model, tmp_path)


def test_mixed_recipe(int8: Run, tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(int8.work, tmp_path / "work")
    rules = (
        Rule("head", "model"),
        Rule("layers.0.key", "int8-weight"),
        Rule("layers.0.*", "int8", "percentile", 0.5),
        Rule("layers.1.*", "int4-weight"),
        Rule("embed", "int8-weight"),
    )
    recipe = Recipe("mixed", rules, agreement=0.0, drift=1.0, tokens=0.0)
    found = run(tiny_model, tmp_path, recipe, settings=replace(SETTINGS, sensitivity_states=0))
    assert found.result.sensitivities == ()
    quantization = found.result.manifest.quantization
    assert quantization is not None
    assert quantization.counts == {"int8-weight": 2, "int8": 6, "int4-weight": 7, "model": 1}
    assert quantization.layers["layers.0.up"].smooth == 0.5
    assert not found.result.findings
    assert found.result.manifest.graph.opset == 21  # for 4-bit integers


def test_output_stays_when_a_run_fails(
    int8: Run, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(int8.work, tmp_path / "work")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(LopaError, match="not empty"):
        run(tiny_model, tmp_path)

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device", "weights.data")

    monkeypatch.setattr(module, "write_pieces", fail)
    with pytest.raises(LopaError, match="No space left on device"):
        run(tiny_model, tmp_path, force=True)
    assert names(tmp_path / "out") == ["mine.txt"]


def test_ranges_are_readable(int8: Run) -> None:
    data = json.loads((int8.work / "ranges.json").read_text())
    assert data["settings"] == {"samples": 10, "decodes": 6, "new_tokens": 16, "context": 64}
    tensor = data["tensors"]["layers.1.down"]
    assert tensor["largest"] == max(tensor["channels"])
    assert len(tensor["channels"]) == 128
    assert (len(tensor["counts"]) - 1) * tensor["bin_width"] <= tensor["largest"]
    rows = np.fromfile(int8.work / "rows" / "layers.1.down.f32", np.float32)
    assert np.abs(rows).max() <= tensor["largest"]
