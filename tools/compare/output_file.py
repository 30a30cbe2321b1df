"""Where inputs and outputs may be saved, asked before hours of work."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from ...runtime.contract import LopaError
from ...runtime.manifest import BUNDLE_FILE, MODEL_FILE
from ...runtime.staging import check_file
from .contestant import CHECKPOINT_CONFIG

_MARK = b'"polygraphy_class"'  # in every file of polygraphy that holds an array


def check_output_file(path: Path, force: bool) -> None:
    """Raise LopaError unless `path` is a name for a new file, or for one that may be replaced.

    That is an earlier one of polygraphy's, or with `force` any but a file of a bundle, a model
    folder or a checkpoint.
    """
    if path.suffix != ".json":  # polygraphy takes a name without extension for a folder
        raise LopaError(f"{path}: expected a name that ends in .json")
    check_file(path)
    own = (BUNDLE_FILE, MODEL_FILE, CHECKPOINT_CONFIG)
    if path.is_file() and _is_ours(path):
        return
    folder = Path(os.path.realpath(path)).parent
    model = any((folder / name).is_file() for name in own)
    if model and (path.exists() or path.name in own):
        raise LopaError(f"{path} is a file of a bundle or model; choose another name")
    if path.exists() and not (force and path.is_file()):
        raise LopaError(
            f"{path} was not written by lopa compare; choose another name or replace it with "
            "--force"
        )


def _is_ours(path: Path) -> bool:
    if not path.stat().st_size:
        return False  # and nothing to map
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(_MARK) >= 0
