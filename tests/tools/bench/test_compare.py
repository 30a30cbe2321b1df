"""The engine and the eager baseline share no decoding code and must agree on every token."""

from __future__ import annotations

from pathlib import Path

import pytest
from lopa.export.model_folder import export_model
from lopa.graphs.bundle import build_bundle
from lopa.graphs.instances import plan_instances
from lopa.tools.bench.compare import Comparison, cold_start_seconds, compare
from lopa.tools.bench.random_model import parse_spec, write_random_checkpoint

SETTINGS = {
    "strategy": "lopa",
    "lookahead": 3,
    "block_size": 8,
    "max_new_tokens": 32,
    "add_threshold": 0.1,
    "complete_threshold": 0.95,
    "confidence": 0.3,
}
PROMPTS = [[7, 300, 12, 45, 6], list(range(20))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    spec = parse_spec("d64,l2,v512,h4,kv2,i96")
    write_random_checkpoint(folder / "checkpoint", spec)
    export_model(folder / "checkpoint", folder / "model")
    instances = plan_instances(3, [32], [64], [64])
    build_bundle(folder / "model", folder / "bundle", instances)
    return folder


@pytest.fixture(scope="module")
def comparison(folder: Path) -> Comparison:
    return compare(
        folder / "bundle",
        folder / "checkpoint",
        PROMPTS,
        SETTINGS,
        window=32,
        repeats=2,
        threads=1,
        progress=lambda done, total: None,
    )


def test_tokens_steps_and_forwards_are_identical(comparison: Comparison) -> None:
    assert comparison.identical == comparison.prompts == 2
    engine, baseline = comparison.engine, comparison.baseline
    assert engine.tokens == baseline.tokens == 64
    assert engine.steps == baseline.steps
    assert engine.forwards == baseline.forwards > engine.steps


def test_measurements_are_complete(comparison: Comparison) -> None:
    assert comparison.ratio_low <= comparison.ratio <= comparison.ratio_high
    assert 0 < comparison.engine.engine_seconds < comparison.engine.seconds
    assert comparison.engine.peak_bytes < comparison.baseline.peak_bytes
    assert comparison.engine.tokens_per_second == pytest.approx(
        comparison.engine.tokens / comparison.engine.seconds
    )


def test_cold_start_counts_from_import_to_first_token(folder: Path) -> None:
    (seconds,) = cold_start_seconds(folder / "bundle", PROMPTS[0], repeats=1)
    assert 0 < seconds < 60
