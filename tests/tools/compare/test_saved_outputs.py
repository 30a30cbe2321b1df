from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lopa.tools.compare.saved_outputs import saved_outputs
from polygraphy.comparator import IterationResult, RunResults

NAMES = ("A one", 'B "[]" two')


def step(number: int) -> RunResults:
    """Outputs of both sides at a step."""
    return RunResults(
        [
            (name, [IterationResult({"entropy": np.full(3, 10 * number + side)}, 0.5, name)])
            for side, name in enumerate(NAMES)
        ]
    )


def test_the_file_is_what_polygraphy_saves_at_once(tmp_path: Path) -> None:
    path = tmp_path / "outputs.json"
    with saved_outputs(path) as save:
        for number in range(3):
            save(step(number))
        assert not path.exists()
    found, expected = RunResults.load(str(path)), RunResults.concat([step(i) for i in range(3)])
    assert list(found.keys()) == list(NAMES)
    assert len(found[NAMES[1]]) == 3
    assert found == expected
    assert found[NAMES[1]][2]["entropy"].tolist() == [21, 21, 21]
    assert [file.name for file in tmp_path.iterdir()] == ["outputs.json"]


def test_no_step_is_kept_in_memory(tmp_path: Path) -> None:
    arrays: list[weakref.ref[Any]] = []
    with saved_outputs(tmp_path / "outputs.json") as save:
        for number in range(4):
            run = step(number)
            arrays += [weakref.ref(item[0]["entropy"]) for item in run.values()]
            save(run)
            del run
            gc.collect()
            assert [array() for array in arrays] == [None] * len(arrays)


def test_a_failed_run_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "outputs.json"

    def fail() -> None:
        with saved_outputs(path) as save:
            save(step(0))
            raise KeyboardInterrupt

    for before in (None, "before"):
        if before is not None:
            path.write_text(before)
        with pytest.raises(KeyboardInterrupt):
            fail()
        left = [file.read_text() for file in tmp_path.iterdir()]
        assert left == ([] if before is None else [before])
