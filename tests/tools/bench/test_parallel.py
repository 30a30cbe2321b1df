from __future__ import annotations

import re
from pathlib import Path

import pytest
from lopa.tools.bench.parallel import main


def test_both_rates_and_their_ratio_are_printed(
    tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--parallel", "3", "--repeats", "2", "--prompts", "4", "--max-new-tokens", "16"]
    assert main([str(tiny_bundle), *flags]) == 0
    one, several, ratio = capsys.readouterr().out.splitlines()
    pattern = r"{} at the same time: (\d+) tokens/s \(\d+ to \d+, 2 rounds\)"
    rates = [re.fullmatch(pattern.format(n), line) for n, line in ((1, one), (3, several))]
    assert all(match is not None and int(match[1]) > 0 for match in rates)
    assert re.fullmatch(r"\d+\.\d\dx, round by round \d+\.\d\dx to \d+\.\d\dx", ratio)


def test_one_at_a_time_has_nothing_to_compare(
    tiny_bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tiny_bundle), "--parallel", "1"]) == 1
    assert "--parallel is 1, expected two or more" in capsys.readouterr().err
