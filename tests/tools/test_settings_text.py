from __future__ import annotations

import json
from pathlib import Path

from lopa.runtime.options import DecodeOptions
from lopa.tools.settings_text import flag_help, markdown, schema

STRATEGIES_PAGE = Path(__file__).resolve().parents[2] / "docs" / "strategies.md"


def test_the_documentation_has_the_table_of_the_declarations() -> None:
    assert markdown() in STRATEGIES_PAGE.read_text(encoding="utf-8")


def test_help_merges_what_strategies_declare_alike() -> None:
    assert flag_help("confidence", "--confidence") == (
        "of d2f, fast-dllm, block-diffusion with --fill threshold: every position above it is "
        "filled at once (default 0.9)"
    )
    assert flag_help("confidence", "--threshold") == (
        "the same setting as --confidence (default 0.9)"
    )
    assert flag_help("block_size", "--block-size") == (
        "masks of a block; d2f, fast-dllm, block-diffusion (default: that of the model's "
        "training); vanilla (default: one block of all new tokens)"
    )


def test_the_schema_is_plain_json_and_holds_the_defaults_in_force() -> None:
    found = json.loads(json.dumps(schema(), allow_nan=False))
    for name, strategy in found["strategies"].items():
        in_force = DecodeOptions(strategy=name).in_force
        declared = [*found["shared"], *strategy["settings"]]
        assert {item["name"] for item in declared} == set(in_force)
        for item in declared:
            if "default" in item and item["name"] != "strategy":
                assert in_force[item["name"]] == item["default"]
            assert ("default" in item) != ("default_text" in item)
    names = [item["name"] for item in found["lookaheads"]["lopa"]]
    assert names[:4] == ["lookahead", "lookahead_shape", "confirm", "anchor_wins"]
    alpha = next(item for item in found["lookaheads"]["lopa"] if item["name"] == "score_alpha")
    assert alpha["used_with"] == {"score": ["mixed", "reward_entropy"]}
