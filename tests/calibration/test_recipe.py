from __future__ import annotations

from pathlib import Path

import pytest
from lopa.calibration.recipe import PRESETS, Recipe, Rule, find_recipe
from lopa.runtime.contract import LopaError


def test_first_rule_that_matches_wins() -> None:
    recipe = Recipe(
        "mine",
        (
            Rule("layers.0.*", "model"),
            Rule("*.down", "int8-weight"),
            Rule("layers.*", "int8", "percentile", 0.5),
        ),
    )
    assert recipe.rule("layers.0.down").precision == "model"
    assert recipe.rule("layers.1.down").precision == "int8-weight"
    assert recipe.rule("layers.1.query") == recipe.rules[2]
    assert recipe.rule("head").precision == "model"  # no rule matches


def test_presets_quantise_every_layer() -> None:
    expected = {
        "int8": "int8",
        "int8-kv": "int8",
        "int8-weight": "int8-weight",
        "int4-weight": "int4-weight",
    }
    assert {name: recipe.rule("layers.3.up").precision for name, recipe in PRESETS.items()} == (
        expected
    )
    assert {recipe.rule("embed").precision for recipe in PRESETS.values()} == {"fp16"}


def test_recipe_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'agreement = 0.9\n[[rule]]\nmatch = "head"\nprecision = "model"\n'
        '[[rule]]\nmatch = "*"\nprecision = "int8"\nmethod = "entropy"\nsmooth = 0.5\n'
    )
    recipe = find_recipe(str(path))
    assert recipe == Recipe(
        "mine", (Rule("head", "model"), Rule("*", "int8", "entropy", 0.5)), agreement=0.9
    )
    assert recipe.lines() == ("head -> model", "* -> int8, entropy, smooth 0.5")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "no [[rule]]"),
        ('[[rule]]\nmatch = "*"', "rule 1: no precision"),
        (
            '[[rule]]\nmatch = "*"\nprecision = "int7"',
            "rule 1: precision is 'int7', "
            "expected one of: model, fp16, int8-weight, int8, int4-weight",
        ),
        (
            '[[rule]]\nmatch = "*"\nprecision = "int8"\nsmooth = 2',
            "smooth is 2, expected auto, off or 0 to 1",
        ),
        ('[[rule]]\nmatch = 3\nprecision = "int8"', "match is 3, expected a pattern of names"),
        ("rule = [1]", "rule 1 is 1, expected a table"),
        ('[[rule]]\nmatch = "*"\nprecision = "int8"\nfoo = 1', "rule 1: unknown key foo"),
        ('speed = 1\n[[rule]]\nmatch = "*"\nprecision = "int8"', "unknown key speed"),
        ('agreement = 2\n[[rule]]\nmatch = "*"\nprecision = "int8"', "agreement is 2"),
        ("[[rule", "is not valid TOML"),
    ],
)
def test_faults_of_a_recipe_file(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(LopaError) as caught:
        find_recipe(str(path))
    assert fault in str(caught.value)


def test_unknown_preset_lists_the_known() -> None:
    with pytest.raises(LopaError, match=r"'fast', expected one of: .*int8-weight"):
        find_recipe("fast")
    with pytest.raises(LopaError, match="cannot read the recipe"):
        find_recipe("absent.toml")
