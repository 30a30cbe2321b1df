"""Every step of the published D2F, LoPA and vanilla loops' trajectories, on the saved engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from .cases import BLOCK_FILES, D2F_FILES, PARTS, assert_none, part_of, read_file
from .conftest import OpenGolden
from .d2f_loops import decode_faults, published_options


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("file", D2F_FILES)
def test_trajectories(golden: Path, open_golden: OpenGolden, file: str, part: int) -> None:
    data = read_file(golden, file)
    session = open_golden(data["checkpoint"])
    assert_none(
        f"case {case['id']}: {fault}"
        for case in part_of(data, part)
        for fault in decode_faults(session, case, published_options(file, case["settings"]))
    )


@pytest.mark.parametrize(("file", "cases"), (D2F_FILES | BLOCK_FILES).items())
def test_no_case_is_left_out(golden: Path, file: str, cases: int) -> None:
    found = read_file(golden, file)["cases"]
    assert len(found) >= (cases if golden.name == "golden" else 1)
