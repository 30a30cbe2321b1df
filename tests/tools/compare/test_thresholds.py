from __future__ import annotations

import math
from dataclasses import replace

import pytest
from lopa.tools.compare.agreement import Agreement
from lopa.tools.compare.decodes import Decode, DecodesReport, compare_decodes
from lopa.tools.compare.steps import OutputError, StepsReport
from lopa.tools.compare.thresholds import THRESHOLDS, check, default_limits

STEPS = StepsReport(
    3,
    {"log_probs": OutputError(0.1, 0.01, 0.2, 0.02)},
    Agreement(10, 0.995, 1.0, 1e-3, 1e-2, 0.0, 1e-4, 1e-3),
)
DECODES = DecodesReport(10, 9, (50, 50), 0.995, 0.95, (9, 9), (8, 8))


def test_all_bounds_are_checked() -> None:
    checks = check(default_limits(("fp32", "fp16")), STEPS, DECODES)
    assert [item.threshold for item in checks] == list(THRESHOLDS)
    assert all(item.kept for item in checks)
    assert len(check(default_limits(("fp32", "fp16")), STEPS, None)) == 4
    ungraded = replace(DECODES, right=None)
    assert len(check(default_limits(("fp32", "fp16")), STEPS, ungraded)) == 6


def test_the_coarser_precision_sets_the_bounds() -> None:
    exact, half = default_limits(("fp32", "fp32")), default_limits(("fp16", "fp32"))
    assert exact["max_abs"] < half["max_abs"] < default_limits(("fp32", "int8"))["max_abs"]
    missed = [item for item in check(exact, STEPS, DECODES) if not item.kept]
    assert [item.text for item in missed] == [
        "top-1 agreement 0.995, expected at least 0.999 (--min-top1)",
        "error of log_probs 0.1, expected at most 0.01 (--max-abs)",
        "confidence drift 0.001, expected at most 0.0001 (--max-drift)",
        "mean KL 0.0001, expected at most 1e-05 (--max-kl)",
    ]


def test_nan_keeps_no_bound() -> None:
    broken = replace(STEPS, outputs={"log_probs": OutputError(math.nan, 0, 0, 0)})
    missed = [
        item.threshold.flag
        for item in check(default_limits(("fp32", "fp16")), broken, None)
        if not item.kept
    ]
    assert missed == ["--max-abs"]


def test_decodes_are_compared_prompt_by_prompt() -> None:
    one = [Decode((1, 2, 3), (0, 1), True), Decode((4, 5), (2,), True)]
    two = [Decode((1, 2, 9), (0, 1, 1), False), Decode((4, 5), (2,), True)]
    report = compare_decodes(one, two)
    assert (report.prompts, report.identical) == (2, 1)
    assert report.token_agreement == pytest.approx(4 / 5)
    assert report.winner_agreement == pytest.approx(3 / 4)
    assert (report.tokens, report.steps, report.right) == ((5, 5), (3, 4), (2, 1))
    assert report.score_loss == 50
    assert compare_decodes([replace(one[0], right=None)], [two[0]]).score_loss is None
