from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import pytest
from lopa.runtime.contract import LopaError
from lopa.runtime.options import DecodeOptions
from lopa.runtime.strategies.registry import declared
from lopa.tools.decode_flags import setting_values
from lopa.tools.eval.evaluate import Variant, share_settings
from lopa.tools.eval.sweep import Sweep, compare, sweep_variants, task_table, value_table
from lopa.tools.eval.totals import Totals

from .make_sample import make_sample

# By value: (correct, tokens, steps, rows, seconds) of every problem of task a, then of task b.
COSTS = {
    0: ([(True, 20, 10, 200, 4.0), (True, 20, 10, 200, 2.0)], [(False, 20, 10, 200, 3.0)]),
    2: ([(True, 20, 5, 300, 2.0), (True, 20, 5, 300, 2.0)], [(False, 20, 5, 300, 1.0)]),
    4: ([(True, 20, 4, 400, 2.0), (False, 20, 4, 400, 4.0)], [(False, 20, 2, 400, 3.0)]),
}
SAMPLES = [
    make_sample(
        str(index),
        task=task,
        variant=value,
        correct=correct,
        tokens=tokens,
        useful_tokens=tokens // 2,
        steps=steps,
        rows=rows,
        seconds=seconds,
    )
    for value, tasks in COSTS.items()
    for task, costs in zip("ab", tasks, strict=True)
    for index, (correct, tokens, steps, rows, seconds) in enumerate(costs)
]


def test_values_are_parsed_by_the_rules_of_their_flag() -> None:
    field, values = setting_values("lookahead=4,0,2")
    variants = sweep_variants(field, values, DecodeOptions(confidence=0.8))
    assert field == "lookahead"
    assert [variant.value for variant in variants] == [0, 2, 4]
    assert [variant.options.lookahead for variant in variants] == [0, 2, 4]
    assert {variant.options.confidence for variant in variants} == {0.8}
    assert setting_values("threshold=0.9,0.5") == ("confidence", [0.9, 0.5])
    assert setting_values(" top-k = 1, 2") == ("top_k", [1, 2])
    field, values = setting_values("strategy=d2f,lopa")
    variants = sweep_variants(field, values, DecodeOptions(lookahead=3))
    assert [variant.options.strategy for variant in variants] == ["d2f", "lopa"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lookahead=1,x", "expected a whole number, got 'x'"),
        ("lookahead=1,-1", "expected 0 or more, got -1"),
        ("lookahead=1,1", "1 is given twice"),
        ("lookahead", "expected FIELD=a,b,... with a field of"),
        ("colour=1,2", "with a field of add_threshold,"),
        ("strict=1,2", "with a field of"),
    ],
)
def test_wrong_sweeps(text: str, message: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        setting_values(text)
    assert text in str(caught.value)
    assert message in str(caught.value)


def test_every_setting_with_a_value_is_named_once() -> None:
    with pytest.raises(argparse.ArgumentTypeError) as caught:
        setting_values("colour=1")
    listed = str(caught.value).partition("a field of ")[2].partition(";")[0].split(", ")
    flags = {"anchor_wins", "strict"}  # these take none
    assert listed == sorted(set(declared()) - flags)


def test_a_sweep_needs_two_values() -> None:
    with pytest.raises(LopaError, match="--sweep lookahead: give at least two values"):
        sweep_variants("lookahead", [1], DecodeOptions())


def test_lookahead_needs_lopa() -> None:
    with pytest.raises(LopaError, match="strategy d2f has no lookahead; use --strategy lopa"):
        sweep_variants("lookahead", [0, 1], DecodeOptions(strategy="d2f"))


def test_comparison_with_the_base() -> None:
    sweep = compare("lookahead", [0, 2, 4], SAMPLES, ["a", "b"])
    base, two, four = sweep.values
    assert base.overall == Totals(3, 2, 60, 30, 30, 36, 600, 9.0)
    assert (base.score_change, base.tpf_gain, base.speed_up.median) == (0.0, 1.0, 1.0)
    assert (two.overall.tpf, two.tpf_gain, two.useful_tpf_gain) == (4.0, 2.0, 2.0)
    # Seconds of the base over seconds, by problem: 2, 1 and 3.
    assert (two.speed_up.low, two.speed_up.median, two.speed_up.high) == (1.5, 2.0, 2.5)
    assert four.overall.tpf == 6.0
    assert four.score_change == pytest.approx(-100 / 3)
    assert four.overall.rows_per_step == 120.0
    assert sweep.best is two  # four is faster but loses a third of the score
    assert value_table(sweep)[2] == (
        "2", "2/3", "66.7", "+0.0", "4.00", "2.00", "2.00x", "15.0", "60", "12",
        "2.00x (1.50-2.50)",
    )  # fmt: skip
    assert task_table(sweep)[1:] == [
        ("a", "2.00", "4.00", "2.00x", "2.00x", "100.0", "100.0", "+0.0"),
        ("b", "2.00", "4.00", "2.00x", "2.00x", "0.0", "0.0", "+0.0"),
        ("all", "2.00", "4.00", "2.00x", "2.00x", "66.7", "66.7", "+0.0"),
    ]
    content = sweep.to_json()
    assert (content["field"], content["base"], content["best"]) == ("lookahead", 0, 2)
    assert content["values"][2]["tasks"]["b"]["tpf"] == 10.0
    assert content["values"][1]["speed_up"] == {"median": 2.0, "low": 1.5, "high": 2.5}


def test_a_base_that_is_the_best_is_compared_with_the_next_fastest() -> None:
    sweep = compare("lookahead", [2, 0, 4], SAMPLES, ["a", "b"])  # 4 loses a third of the score
    assert sweep.best is sweep.base
    assert sweep.rival.value == 4
    assert task_table(sweep)[0][1:3] == ("TPF at 2", "TPF at 4")
    assert task_table(sweep)[3] == (
        "all", "4.00", "6.00", "1.50x", "1.50x", "66.7", "33.3", "-33.3",
    )  # fmt: skip
    assert sweep.verdict == (
        "lookahead 2, the base: no other value has a higher TPF at no more than 1 point of score "
        "lost"
    )
    assert replace(sweep, allowed_loss=2.5).verdict.endswith(
        "no more than 2.5 points of score lost"
    )
    better = compare("lookahead", [0, 2, 4], SAMPLES, ["a", "b"])
    assert better.rival is better.best
    assert better.verdict == "lookahead 2: highest TPF at no more than 1 point of score lost"


def test_flags_given_for_all_values_count_where_they_are_used() -> None:
    given = DecodeOptions(add_threshold=0.3, confidence=0.8, score="mixed")
    variants = [Variant(name, given.replace(strategy=name)) for name in ("lopa", "d2f", "vanilla")]
    shared = {variant.value: variant.options for variant in share_settings(given, variants)}
    assert shared["lopa"] == given.replace(strategy="lopa")
    assert shared["d2f"] == DecodeOptions(strategy="d2f", add_threshold=0.3, confidence=0.8)
    assert shared["vanilla"] == DecodeOptions(strategy="vanilla")
    useless = [
        Variant(n, DecodeOptions(strategy="vanilla", steps=n, score="mixed")) for n in (1, 2)
    ]
    given = DecodeOptions(strategy="vanilla", score="mixed")
    assert share_settings(given, useless) == useless  # nobody uses it: refused by the check
    swept = [Variant(n, DecodeOptions(strategy="vanilla", add_threshold=n)) for n in (0.1, 0.2)]
    assert share_settings(DecodeOptions(strategy="vanilla"), swept) == swept


def named_sweep(*names: str) -> Sweep:
    return compare("settings", names, [make_sample("1", variant=name) for name in names], ["a"])


def test_curve(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra report")
    from lopa.tools.eval.curve import axis_places, draw_curve, score_interval

    sweep = compare("lookahead", [0, 2, 4], SAMPLES, ["a", "b"])
    draw_curve(sweep, "a $title", tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    draw_curve(named_sweep("plain", r"$\frac$"), "names are no formulas", tmp_path / "named.png")
    assert (tmp_path / "named.png").read_bytes().startswith(b"\x89PNG")
    assert axis_places([0, 2, 4]) == [0.0, 2.0, 4.0]
    assert axis_places(["d2f", "lopa"]) == [0.0, 1.0]
    low, high = score_interval(Totals(100, 50, 0, 0, 0, 0, 0, 0.0))
    assert low == pytest.approx(40.4, abs=0.05)
    assert high == pytest.approx(59.6, abs=0.05)
    assert score_interval(Totals(10, 0, 0, 0, 0, 0, 0, 0.0))[0] == 0.0
