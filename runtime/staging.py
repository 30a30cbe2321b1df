"""Outputs appear whole or not at all: written to a temporary sibling, then renamed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from .contract import LopaError


def check_output(out: Path, force: bool, *sources: Path) -> None:
    """Raise LopaError when `out` may not be written.

    That is: it is a file, not empty without `force`, or holds one of the `sources`.
    """
    for source in sources:
        if source.resolve().is_relative_to(out.resolve()):
            raise LopaError(f"output {out} would replace its own source {source}; choose another")
    if out.is_dir() and any(out.iterdir()) and not force:
        raise LopaError(f"output folder {out} is not empty; choose another or add --force")
    if out.exists() and not out.is_dir():
        raise LopaError(f"output {out} is a file, expected a folder name")


def check_file(path: Path) -> None:
    """Raise LopaError when no file can be written at `path`: asked before hours of work."""
    folder = Path(os.path.realpath(path)).parent
    if path.is_dir():
        raise LopaError(f"{path} is a folder, expected the name of a file")
    if not folder.is_dir():
        raise LopaError(f"cannot write {path}: there is no folder {folder.name}")
    if not os.access(folder, os.W_OK):
        raise LopaError(f"cannot write {path}: no permission to write in its folder")


@contextlib.contextmanager
def staged_folder(out: Path, force: bool = False) -> Iterator[Path]:
    """Yield a temporary sibling of `out`; on success it takes the name `out`, else it is removed.

    What `out` held before is replaced as a whole (`force`) and only after the new one is complete.
    A symbolic link stays: the folder it points to is written. An error of the file system (disk
    full, no permission) is raised as LopaError.
    """
    out = Path(os.path.realpath(out)) if out.is_symlink() else out.absolute()
    check_output(out, force)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
    except OSError as error:
        raise LopaError(f"cannot write next to {out}: {error.strerror}") from None
    try:
        stage.chmod(0o755)
        yield stage
        _replace(stage, out)
    except OSError as error:
        name = os.path.basename(error.filename) if error.filename else out.name
        raise LopaError(
            f"writing {out} failed at {name}: {error.strerror or error}; nothing was kept"
        ) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write or replace one file; who reads it sees the old contents or the new, never a part."""
    path = Path(os.path.realpath(path))  # a symbolic link stays
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    draft = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        draft.chmod(0o644)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _replace(stage: Path, out: Path) -> None:
    """Give `stage` the name `out`; what was there comes back if that fails."""
    if not out.exists():
        stage.rename(out)
        return
    old = stage.with_suffix(".replaced")
    out.rename(old)
    try:
        stage.rename(out)
    except BaseException:
        old.rename(out)
        raise
    shutil.rmtree(old, ignore_errors=True)
