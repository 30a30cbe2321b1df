"""A strategy is one file and one line in the registry: nothing else of the package changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from lopa.runtime.strategies import registry
from lopa.tools.decode_flags import setting_values
from lopa.tools.settings_text import markdown

from ...runtime.strategies.toy_strategy import ToySettings
from .conftest import Lopa


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BASES, "toy", ToySettings)


def generate(lopa: Lopa, bundle: Path, *flags: object) -> dict[str, Any]:
    shown = lopa(
        "generate", bundle, "--prompt", "one", "--raw", "--json", "--max-new-tokens", 9, *flags
    )
    assert (shown.status, shown.err) == (0, "")
    found: dict[str, Any] = json.loads(shown.out)
    return found


@pytest.mark.parametrize(("stride", "steps"), [(None, 5), (3, 3), (4, 3), (9, 1)])
def test_it_decodes(
    lopa: Lopa, tiny_bundle: Path, tmp_path: Path, stride: int | None, steps: int
) -> None:
    trace = tmp_path / "trace.jsonl"
    given = [] if stride is None else ["--stride", stride]
    found = generate(lopa, tiny_bundle, "--strategy", "toy", "--trace", trace, *given)
    assert (found["tokens"], found["steps"], found["forwards"]) == (9, steps, steps)
    filled = [
        position
        for line in trace.read_text(encoding="utf-8").splitlines()
        for position, _ in json.loads(line)["filled"]
    ]
    assert filled == list(range(filled[0], filled[0] + 9))


def test_lookahead_branches_run_over_it(lopa: Lopa, tiny_bundle: Path) -> None:
    found = generate(lopa, tiny_bundle, "--base", "toy", "--stride", 1, "--lookahead", 2)
    assert found["tokens"] == 9
    assert found["steps"] < 9 < found["forwards"]


def test_its_settings_are_checked_like_all_others(lopa: Lopa, tiny_bundle: Path) -> None:
    for flags, message in (
        (("--strategy", "d2f", "--stride", 2), "stride is for toy, d2f does not use it"),
        (("--strategy", "toy", "--steps", 2), "steps is for vanilla or fast-dllm, toy does not"),
        (("--strategy", "toy", "--stride", 2_000_000), "stride is 2000000, expected at most 10000"),
        (("--strategy", "toys"), "strategy is 'toys', expected one of: lopa, d2f, vanilla, fast-"),
    ):
        shown = lopa("generate", tiny_bundle, "--prompt", "one", *flags)
        assert (shown.status, shown.out) == (1, "")
        assert shown.err.startswith(f"lopa: error: {message}")


def test_it_is_in_help_sweeps_schema_and_documentation(lopa: Lopa) -> None:
    shown = lopa("generate", "--help")
    assert "of toy: masks that a step fills, from left to right" in " ".join(shown.out.split())
    assert setting_values("stride=1,4") == ("stride", [1, 4])
    schema = json.loads(lopa("inspect", "--settings", "--json").out)
    assert schema["strategies"]["toy"] == {
        "trained_for": "full",
        "settings": [
            {
                "name": "stride",
                "type": "integer",
                "default": 2,
                "meaning": "masks that a step fills, from left to right",
                "minimum": 1,
                "maximum": 1_000_000,
            }
        ],
    }
    row = "| `stride` | toy | masks that a step fills, from left to right | 1 or more | 2 |"
    assert row in markdown().splitlines()
