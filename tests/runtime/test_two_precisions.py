"""A bundle with a second graph: which steps run by it, and that auto keeps the full result."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lopa.runtime.contract import LopaError
from lopa.runtime.manifest import read_bundle, record_files, write_manifest
from lopa.runtime.quantization import FastGraph, Quantization
from lopa.runtime.session import Session, open_bundle

PROMPT = [5, 9, 17, 33, 80]
BUDGET: dict[str, Any] = {"max_new_tokens": 32, "confidence": 0.2}


@pytest.fixture(scope="module")
def both(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """The tiny bundle with a fast graph that has the same weights, shaken."""
    folder = tmp_path_factory.mktemp("both") / "bundle"
    shutil.copytree(tiny_bundle, folder)
    manifest = read_bundle(folder)
    data = next(name for name in manifest.files if name.endswith(".data"))
    (folder / "fast").mkdir()
    shutil.copy(folder / manifest.graph.file, folder / "fast")
    weights = np.fromfile(folder / data, np.float32)
    noise = np.random.default_rng(0).normal(1, 0.2, weights.shape)
    (weights * noise).astype(np.float32).tofile(folder / "fast" / data)
    names = [*manifest.files, f"fast/{manifest.graph.file}", f"fast/{data}"]
    record = Quantization("int8", (), {}, 1.0, 1, "0" * 64, "0" * 64)
    fast = FastGraph(f"fast/{manifest.graph.file}", record)
    write_manifest(folder, replace(manifest, files=record_files(folder, names), fast=fast))
    return open_bundle(folder)


def decode(session: Session, **settings: Any) -> Any:
    return session.generate(prompt_ids=PROMPT, **{**BUDGET, **settings})


def test_full_never_runs_the_fast_graph(both: Session, tiny_bundle: Path) -> None:
    plain, found = decode(open_bundle(tiny_bundle)), decode(both)
    assert found.token_ids == plain.token_ids
    assert (found.steps, found.fast_steps, found.repeats) == (plain.steps, 0, 0)


def test_fast_runs_nothing_else(both: Session) -> None:
    found = decode(both, precision_policy="fast")
    assert found.token_ids != decode(both).token_ids  # its weights are not the same
    assert (found.fast_steps, found.repeats) == (found.steps, 0)
    events = list(both.stream(prompt_ids=PROMPT, precision_policy="fast", **BUDGET))
    assert {event.precision for event in events} == {"fast"}


def test_auto_writes_the_cache_in_full_and_counts_both_runs_of_a_repeat(both: Session) -> None:
    settings: dict[str, Any] = {
        **BUDGET,
        "precision_policy": "auto",
        "precision_margin": 0.02,
    }
    events = list(both.stream(prompt_ids=PROMPT, **settings))
    assert all(event.precision == "full" for event in events if event.committed)
    assert any(event.precision != "full" for event in events)
    found = decode(both, **settings)
    repeats = sum(event.precision == "both" for event in events)
    assert (found.steps, found.repeats) == (len(events) + repeats, repeats)
    assert found.fast_steps == sum(event.precision != "full" for event in events)
    assert found.rows == sum(
        event.shape.window_rows * (2 if event.precision == "both" else 1) for event in events
    )


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 1000),
    temperature=st.sampled_from([0.0, 0.8]),
    lookahead=st.integers(0, 3),
    base=st.sampled_from(["d2f", "fast-dllm"]),
    nested=st.booleans(),
)
def test_a_margin_that_doubts_everything_gives_the_full_decode(
    both: Session, seed: int, temperature: float, lookahead: int, base: str, nested: bool
) -> None:
    options = {"base": base, "lookahead": lookahead, "seed": seed, "temperature": temperature}
    if nested:
        options["lookahead_shape"] = "nested"
    full = decode(both, **options)
    auto = decode(both, precision_policy="auto", precision_margin=1.0, **options)
    assert auto.token_ids == full.token_ids
    assert auto.steps == full.steps + auto.repeats


@pytest.mark.parametrize("policy", ["fast", "auto"])
def test_a_bundle_with_one_precision_refuses(tiny_bundle: Path, policy: str) -> None:
    with pytest.raises(LopaError, match="holds one precision; build with --fast-model"):
        decode(open_bundle(tiny_bundle), precision_policy=policy)


def test_what_a_margin_could_confirm_is_run_again(both: Session) -> None:
    """Counts of confirmed tokens lie further apart than any margin; the probabilities decide."""
    options: dict[str, Any] = {"prompt_ids": PROMPT, "base": "vanilla", "max_new_tokens": 16}
    options |= {"lookahead_shape": "nested", "confirm": 0.02}
    options["precision_policy"] = "auto"
    assert both.generate(**options, precision_margin=0.0).repeats == 0
    assert both.generate(**options, precision_margin=1.0).repeats > 0


def test_settings_of_the_policy_are_checked(both: Session) -> None:
    with pytest.raises(LopaError, match="precision policy is 'half', expected one of: full, fast"):
        decode(both, precision_policy="half")
    with pytest.raises(LopaError, match="precision margin is for precision policy auto"):
        decode(both, precision_margin=0.2)
