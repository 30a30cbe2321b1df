from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lopa.runtime.contract import ContractError, LopaError
from lopa.runtime.manifest import read_bundle
from lopa.tools.compare.saved_runner import ProfileRunner, saved_runner
from polygraphy.backend.onnxrt import OnnxrtRunner
from polygraphy.backend.trt import TrtRunner


def test_only_targets_that_polygraphy_knows_have_a_runner(tiny_bundle: Path) -> None:
    manifest = read_bundle(tiny_bundle)
    assert isinstance(saved_runner(tiny_bundle, manifest, "cpu", "A"), OnnxrtRunner)
    other = replace(manifest, engine=replace(manifest.engine, target="elsewhere"))
    with pytest.raises(LopaError, match="no runner for target elsewhere"):
        saved_runner(tiny_bundle, other, "cpu", "A")


def test_every_step_takes_the_profile_of_its_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    profiles: list[int] = []
    runner = ProfileRunner(None, ("b1-w4-c8-r4", "b2-w4-c8-r8"), "A")
    monkeypatch.setattr(TrtRunner, "set_profile", lambda self, index: profiles.append(index))
    monkeypatch.setattr(TrtRunner, "infer_impl", lambda self, feed_dict: {"seen": feed_dict})

    def feed(branches: int) -> dict[str, Any]:
        return {
            "input_ids": np.zeros((branches, 4)),
            "cache_mask": np.zeros(8),
            "head_rows": np.zeros(4 * branches),
        }

    for branches in (2, 1):
        assert runner.infer_impl(feed(branches))["seen"]["input_ids"].shape == (branches, 4)
    assert profiles == [1, 0]
    with pytest.raises(ContractError, match="no profile is b3-w4-c8-r12"):
        runner.infer_impl(feed(3))
