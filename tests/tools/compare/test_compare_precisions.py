from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from lopa.runtime.manifest import read_bundle, record_files, write_manifest

from .conftest import DECODE, PROMPTS, Lopa


@pytest.mark.parametrize("policy", ["fast", "auto"])
def test_two_precisions_are_compared_as_they_decode(
    lopa: Lopa, two_precisions: Path, prompts: Path, tmp_path: Path, policy: str
) -> None:
    flags = ("--prompts", prompts, *DECODE, "--precision-policy", policy)
    saved = ("--save-inputs", tmp_path / "inputs.json", "--max-inputs", 100)
    found = json.loads(
        lopa("compare", two_precisions, two_precisions, *flags, *saved, "--json").out
    )
    assert (found["precision_policy"], found["a"]["fast_precision"]) == (policy, "int8")
    steps, decodes = found["steps"], found["decodes"]
    assert {error["max_abs"] for error in steps["outputs"].values()} == {0}
    assert decodes["identical"] == len(PROMPTS)
    assert found["checks"][0]["expected"] == 0.98  # of a quantised graph
    if policy == "fast":
        assert steps["fast"] == steps["steps"] == decodes["steps"][0]
    else:  # a step that ran twice was recorded twice
        assert 0 < steps["fast"] < steps["steps"] > decodes["steps"][0]


def test_the_fast_graphs_are_compared_where_they_ran(
    lopa: Lopa, two_precisions: Path, prompts: Path, tmp_path: Path
) -> None:
    """The full graphs of the sides are the same, the fast ones are not."""
    other = tmp_path / "other"
    shutil.copytree(two_precisions, other)
    shutil.copy(other / "weights.data", other / "fast/weights.data")
    manifest = read_bundle(other)
    files = record_files(other, list(manifest.files))
    write_manifest(other, dataclasses.replace(manifest, files=files))
    inputs = tmp_path / "inputs.json"
    flags = ("--prompts", prompts, *DECODE)
    shown = lopa("compare", two_precisions, other, *flags)
    assert "top-1 100.00 %" in shown.out
    assert "fast graphs" not in shown.out
    saved = ("--save-inputs", inputs, "--max-inputs", 4)
    shown = lopa("compare", two_precisions, other, *flags, "--precision-policy", "fast", *saved)
    assert shown.out.startswith("lopa compare: fp32 and fp32, precision policy fast\n")
    assert "run by the fast graphs: 4 of 4" in shown.out
    assert f"{other}  onnxruntime fp32, fast int8" in shown.out
    loaded = ("--load-inputs", inputs, "--no-decode", "--threads", 1, "--json")
    errors = []
    for policy in ("full", "fast"):
        shown = lopa("compare", two_precisions, other, *loaded, "--precision-policy", policy)
        errors.append(json.loads(shown.out)["steps"]["outputs"]["log_probs"]["max_abs"])
    assert errors[0] == 0
    assert errors[1] > 0.01


@pytest.mark.parametrize("policy", ["fast", "auto"])
def test_one_precision_has_no_policy(
    lopa: Lopa,
    two_precisions: Path,
    tiny_bundle: Path,
    tiny_checkpoint: Path,
    prompts: Path,
    policy: str,
) -> None:
    flags = ("--prompts", prompts, *DECODE, "--precision-policy", policy)
    one = f"precision policy '{policy}' is for two precisions, "
    both = (two_precisions, two_precisions)
    cases: list[tuple[tuple[object, ...], str]] = [
        ((two_precisions, tiny_checkpoint), f"{one}{tiny_checkpoint} is a checkpoint: "),
        ((two_precisions, tiny_bundle), f"{one}{tiny_bundle} is a bundle of one precision: "),
        ((tiny_bundle, two_precisions), f"{one}{tiny_bundle} is a bundle of one precision: "),
        ((two_precisions, tiny_bundle, "--no-decode"), f"{one}{tiny_bundle} is a bundle"),
        ((*both, "--bisect"), "--bisect walks the full graphs; use it without"),
        ((*both, "--runner", "polygraphy"), "--runner polygraphy runs the full graphs; use it"),
    ]
    if policy == "auto":
        loaded = (*both, "--load-inputs", "steps.json")
        cases.append((loaded, "--load-inputs does not say which graph ran a step; use it without"))
    for sides, message in cases:
        shown = lopa("compare", *sides, *flags)
        assert (shown.status, shown.out) == (1, "")
        assert message in shown.err
        assert shown.err.count("\n") == 1
