"""The work folder of a calibration: what it holds and whose it is.

ranges.json          ranges of activations, and the model, prompts and settings of all of it
states/, rows/       recorded steps, sampled rows of activations
answers.json         of the original model
sensitivity.json     sites quantised alone; sensitivity.png draws it
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..runtime.contract import LopaError
from .ranges import ROW_SUFFIX, Origin, RangeFile
from .states import STATE_SUFFIX

RANGE_FILE, SENSITIVITY_FILE, ANSWER_FILE = "ranges.json", "sensitivity.json", "answers.json"
PICTURE_FILE = "sensitivity.png"
STATES, ROWS = "states", "rows"


def check_work(work: Path, origin: Origin, force: bool) -> None:
    """Raise LopaError when `work` may not be used for `origin`.

    That is: it is a file, or without `force` holds what no calibration made or one of another
    origin. An origin whose model has no hash yet agrees with every model.
    """
    if (work.exists() or work.is_symlink()) and not work.is_dir():
        raise LopaError(f"work folder {work} is a file, expected a folder name")
    if force or not work.is_dir():
        return
    if (work / RANGE_FILE).is_file():
        RangeFile(work / RANGE_FILE, origin, {})
    elif any(work.iterdir()):
        raise LopaError(
            f"work folder {work} is not empty and no calibration made it; "
            "choose another --work folder or add --force"
        )


def keeps_work(work: Path, origin: Origin) -> bool:
    """Whether `work` holds anything that a calibration of `origin` would go on from."""
    if not ((work / RANGE_FILE).is_file() and _has_steps(work)):
        return False
    try:
        RangeFile(work / RANGE_FILE, origin, {})
    except LopaError:
        return False
    return True


@contextlib.contextmanager
def claimed_work(
    work: Path, origin: Origin, channels: Mapping[str, int], force: bool
) -> Iterator[RangeFile]:
    """Yield the ranges of `work`, found or new, while steps are recorded there.

    `channels` by site name. What belongs to another origin is refused, with `force` discarded. When
    recording fails before the first step, the folder is as before. Raises LopaError.
    """
    check_work(work, origin, force)
    made = not work.is_dir()
    work.mkdir(parents=True, exist_ok=True)
    try:
        ranges = RangeFile(work / RANGE_FILE, origin, channels)
    except LopaError:
        if not force:
            raise
        _discard(work)
        ranges = RangeFile(work / RANGE_FILE, origin, channels)
    try:
        ranges.save()
        yield ranges
    except BaseException:
        if not _has_steps(work):
            _discard(work)
            if made:
                with contextlib.suppress(OSError):  # somebody else's file is there by now
                    work.rmdir()
        raise


def _has_steps(work: Path) -> bool:
    return (work / ANSWER_FILE).is_file() or any((work / STATES).glob("*"))


def _discard(work: Path) -> None:
    """Remove what calibrations write, and nothing else that the folder may hold."""
    for name in (RANGE_FILE, SENSITIVITY_FILE, ANSWER_FILE, PICTURE_FILE):
        (work / name).unlink(missing_ok=True)
    for part, suffix in ((STATES, STATE_SUFFIX), (ROWS, ROW_SUFFIX)):
        for path in (work / part).glob(f"*{suffix}"):
            path.unlink()
        with contextlib.suppress(OSError):  # absent, or it holds something else
            (work / part).rmdir()
