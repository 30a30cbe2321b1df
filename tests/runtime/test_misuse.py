"""Mistakes that once gave wrong tokens, tracebacks or endless runs give one line."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lopa.graphs.instances import plan_instances
from lopa.runtime.contract import LopaError
from lopa.runtime.engines.protocol import StepOutputs
from lopa.runtime.manifest import ManifestError
from lopa.runtime.options import DecodeOptions
from lopa.runtime.sampling import Sampler
from lopa.runtime.session import Session, open_bundle
from lopa.tools.step_trace import open_trace

from .manifests import bundle_manifest

PROMPT = [5, 17, 42, 8]
SETTINGS: dict[str, Any] = {"block_size": 8, "max_new_tokens": 24}


def test_positions_left_masked_are_not_tokens(session: Session) -> None:
    result = session.generate(
        prompt_ids=PROMPT,
        strategy="fast-dllm",
        cache="dual",
        steps=3,
        confidence=1.0,
        block_size=8,
        max_new_tokens=24,
    )
    masks = list(result.token_ids).count(session.manifest.model.mask_token_id)
    assert result.unfilled == masks
    assert result.tokens == 24 - masks
    assert result.useful_tokens <= result.tokens


def test_a_tiny_top_p_keeps_the_first_candidate() -> None:
    outputs = StepOutputs(
        np.array([[7, 8, 9]], np.int32),
        np.log(np.array([[0.5, 0.3, 0.2]], np.float32)),
        np.ones(1, np.float32),
    )
    sampler = Sampler(temperature=1.0, top_p=1e-50)
    rows = np.zeros(1, np.intp)
    predicted = sampler.predict(rows, outputs, rows, None, np.random.default_rng(0))
    assert predicted.token_ids.tolist() == [7]
    assert predicted.probability.tolist() == [1.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 1e-45}, "temperature is 1e-45, expected 0 or a value from 0.001"),
        ({"temperature": 1e39}, "to 1000"),
        ({"steps": 10**9, "strategy": "vanilla"}, "steps is 1000000000, expected at most 1000000"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(LopaError, match=message):
        DecodeOptions(**settings).check(bundle_manifest())


def test_a_prompt_that_is_not_text(session: Session) -> None:
    with pytest.raises(LopaError, match="not valid Unicode"):
        session.encode("\udcff")


def test_threads_have_a_limit(tiny_bundle: Path) -> None:
    with pytest.raises(LopaError, match="threads is 100000, expected 0 to 1024"):
        open_bundle(tiny_bundle, threads=100_000)


def test_an_unlisted_chat_template_is_noticed(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for file in tiny_bundle.iterdir():
        (bundle / file.name).symlink_to(file)
    (bundle / "chat_template.jinja").write_text("HACK", encoding="utf-8")
    with pytest.raises(ManifestError, match=r"chat_template\.jinja is not listed"):
        open_bundle(bundle)


def test_windows_larger_than_the_context() -> None:
    with pytest.raises(LopaError, match="window 300 is larger than the largest context 256"):
        plan_instances(4, [64, 300], [256], [128, 256])


def test_trace_targets(tmp_path: Path) -> None:
    with (
        pytest.raises(LopaError, match="is a folder, expected a file name"),
        open_trace(str(tmp_path)),
    ):
        pass
    with open_trace("/dev/null"):
        pass
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
