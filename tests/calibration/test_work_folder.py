from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lopa.calibration.calibrate import CalibrationWarning
from lopa.calibration.ranges import Origin, RangeFile
from lopa.calibration.recipe import Recipe, Rule
from lopa.calibration.work_folder import check_work, claimed_work
from lopa.runtime.contract import LopaError

from .conftest import SETTINGS, Run, prompts, run

ORIGIN = Origin("a", "b", {"samples": 3, "context": None})


def made(work: Path, origin: Origin = ORIGIN) -> Path:
    """A work folder that a run of `origin` claimed and recorded into."""
    with claimed_work(work, origin, {"x": 2}, force=False):
        (work / "states").mkdir()
        (work / "states" / "typical-0.npz").write_bytes(b"step")
    return work


def stopped(work: Path, wrote: str) -> None:
    """Claim a folder, make one folder below it, and stop."""
    with claimed_work(work, ORIGIN, {"x": 2}, force=False):
        (work / wrote).mkdir(parents=True)
        raise KeyboardInterrupt


def test_folder_of_a_run_is_used_again(tmp_path: Path) -> None:
    made(tmp_path / "work")
    check_work(tmp_path / "work", ORIGIN, force=False)
    check_work(tmp_path / "work", replace(ORIGIN, model_sha256=None), force=False)
    check_work(tmp_path / "absent", ORIGIN, force=False)
    (tmp_path / "empty").mkdir()
    check_work(tmp_path / "empty", ORIGIN, force=False)


def test_folder_with_other_contents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(LopaError, match=r"is not empty and no calibration made it; choose another"):
        check_work(tmp_path, ORIGIN, force=False)
    with pytest.raises(LopaError, match="is a file, expected a folder name"):
        check_work(tmp_path / "notes.txt", ORIGIN, force=True)
    check_work(tmp_path, ORIGIN, force=True)


def test_differences_are_named(tmp_path: Path) -> None:
    made(tmp_path)
    other = Origin("a", "c", {"samples": 4, "context": 64})
    with pytest.raises(LopaError) as caught:
        check_work(tmp_path, other, force=False)
    assert str(caught.value) == (
        f"{tmp_path / 'ranges.json'} was made for other prompts and other settings "
        "(samples: there 3, here 4; context: there the default, here 64); "
        "add --force to start again or choose another --work folder"
    )


def test_force_discards_what_belongs_to_another_run(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "kept.txt").write_text("mine")
    other = replace(ORIGIN, prompts_sha256="c")
    with claimed_work(tmp_path, other, {"x": 2}, force=True) as ranges:
        assert ranges.done == 0
        assert not (tmp_path / "states").exists()
        (tmp_path / "answers.json").write_text("[]")
    assert RangeFile(tmp_path / "ranges.json", other, {"x": 2}).done == 0
    assert (tmp_path / "notes.txt").read_text() == (tmp_path / "rows" / "kept.txt").read_text()


@pytest.mark.parametrize("existed", [False, True])
def test_nothing_stays_when_nothing_was_recorded(tmp_path: Path, existed: bool) -> None:
    work = tmp_path / "work"
    if existed:
        work.mkdir()
    with pytest.raises(KeyboardInterrupt):
        stopped(work, "states")
    assert work.exists() is existed
    assert not existed or not list(work.iterdir())


def test_what_was_recorded_stays(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        stopped(tmp_path, "states/typical-0.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ranges.json", "states"]


@pytest.mark.parametrize(
    ("prompt", "fault"),
    [
        ([5] * 70, "a prompt of 70 tokens leaves no room for an answer in 64 cache slots"),
        (
            [5] * 50,
            "needs 66 cache slots to be decoded, there are 64; "
            "give a shorter prompt or a larger --context or a smaller --max-new-tokens",
        ),
        ([], "the prompt is empty; give at least one token"),
        ([5, 9999], "prompt id 9999 is outside the vocabulary of 320"),
    ],
)
def test_prompts_are_checked_first(
    tiny_model: Path, tmp_path: Path, prompt: list[int], fault: str
) -> None:
    with pytest.raises(LopaError) as caught:
        run(tiny_model, tmp_path, prompts=[*prompts(2), prompt])
    assert fault in str(caught.value)
    assert "bundle" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_few_steps_are_a_warning(int8: Run, tiny_model: Path, tmp_path: Path) -> None:
    assert int8.result.warnings == ()
    rules = (Rule("cache", "int8"),)
    recipe = Recipe("cache", rules, agreement=0.0, drift=1.0, tokens=0.0)
    settings = replace(SETTINGS, samples=96, decodes=128, sensitivity_states=0)
    with pytest.warns(CalibrationWarning) as caught:
        found = run(tiny_model, tmp_path, recipe, prompts=prompts(1), settings=settings)
    steps = found.result.strata
    assert found.result.warnings == tuple(str(warning.message) for warning in caught)
    (text,) = found.result.warnings
    typical = len(list((found.work / "states").glob("typical-*")))
    assert text == (
        f"recorded {sum(steps.values())} of 96 steps, {typical} of 64 typical ones: what is "
        "measured on so few is uncertain; give more prompts or a larger --max-new-tokens"
    )
