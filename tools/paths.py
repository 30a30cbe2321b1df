"""Flags that name files: each says what a command does there, and all are checked together.

The type of a flag is one of the constants below. `check_paths` then sees every path of a command
before its work begins: what is read stays, and nothing is written into a bundle or a model.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from ..runtime.contract import LopaError
from ..runtime.manifest import BUNDLE_FILE, MODEL_FILE
from ..runtime.staging import check_file

STANDARD_STREAM = "-"
CHECKPOINT_CONFIG, CHECKPOINT_WEIGHTS = "config.json", "*.safetensors"
_MARK = b'"contract"'  # the first key of every manifest of ours
_HEAD_BYTES = 4096


class Use(Enum):
    """What a command does at a path."""

    INPUT = "reads it"
    FILE = "writes a new file, or replaces one as a whole"
    CACHE = "reads a file and replaces it; one that cannot be written is no fault"
    STREAM = "writes lines to a file, a pipe, a device or standard output"
    FOLDER = "replaces a folder as a whole"
    WORK = "writes files into a folder"


@dataclass(frozen=True)
class PathType:
    """An argparse type: `read` makes the value of a text, `find` the path of a value, if any."""

    use: Use
    read: Callable[[str], Any] = Path
    find: Callable[[Any], Path | None] = Path

    def __call__(self, text: str) -> Any:
        """Convert; an empty text, which Path takes for the current folder, is refused."""
        if not text:
            raise argparse.ArgumentTypeError("expected a path, got an empty text")
        return self.read(text)


def _file_of_pair(value: str) -> Path | None:
    file = value.partition("=")[2]
    return Path(file) if file else None


def _file_or_pair(value: str) -> Path | None:
    return _file_of_pair(value) if "=" in value else Path(value)


def _not_a_stream(value: str) -> Path | None:
    return None if value == STANDARD_STREAM else Path(value)


def _recipe_file(value: str) -> Path | None:
    return Path(value) if value.endswith(".toml") else None


path = PathType(Use.INPUT)
file_or_stdin = PathType(Use.INPUT, str, _not_a_stream)
task_file = PathType(Use.INPUT, str, _file_of_pair)  # NAME=FILE, or NAME alone
problem_file = PathType(Use.INPUT, str, _file_or_pair)  # NAME=FILE, or FILE alone
recipe_file = PathType(Use.INPUT, str, _recipe_file)  # a name, or a .toml file
output_file = PathType(Use.FILE)
cache_file = PathType(Use.CACHE)
output_stream = PathType(Use.STREAM, str, _not_a_stream)
output_folder = PathType(Use.FOLDER)
work_folder = PathType(Use.WORK)


@dataclass(frozen=True)
class Named:
    """A path of one command line, under the name of its flag."""

    flag: str
    path: Path
    use: Use

    @property
    def text(self) -> str:
        """Flag and path, for messages."""
        return f"{self.flag} {self.path}"

    @property
    def place(self) -> Path:
        """Where it is, links followed."""
        return Path(os.path.realpath(self.path))


def named_paths(parser: argparse.ArgumentParser, args: argparse.Namespace) -> list[Named]:
    """All paths that `args` gives for the flags of `parser`, defaults included."""
    return [
        Named(_name(action), path, action.type.use)
        for action in parser._actions
        if isinstance(action.type, PathType)
        for value in _values(getattr(args, action.dest, None))
        if (path := action.type.find(value)) is not None
    ]


def check_paths(paths: list[Named]) -> None:
    """Raise LopaError for the first output that may not be written.

    That is: it lies in a bundle or model folder, or in an input; it would replace an input; two
    name the same file; or no file can be made there.
    """
    inputs = [item for item in paths if item.use is Use.INPUT]
    outputs = [item for item in paths if item.use is not Use.INPUT]
    for number, output in enumerate(outputs):
        _check_models(output)
        for source in inputs:
            _check_input(output, source)
        for other in outputs[:number]:
            _check_pair(output, other)
        _check_kind(output)


def is_stdout(path: Path) -> bool:
    """Whether `path` is the file or pipe that standard output goes to."""
    try:
        found, own = path.stat(), os.fstat(sys.stdout.fileno())
    except (OSError, ValueError):
        return False
    return os.path.samestat(found, own) and not stat.S_ISCHR(own.st_mode)


def writes_to_stdout(name: str | None) -> bool:
    """Whether an output of this name goes where standard output goes."""
    return name is not None and (name == STANDARD_STREAM or is_stdout(Path(name)))


def is_ours(folder: Path) -> bool:
    """Whether `folder` is a bundle or a model folder, damaged ones too."""
    for name in (BUNDLE_FILE, MODEL_FILE):
        try:
            with (folder / name).open("rb") as file:
                if _MARK in file.read(_HEAD_BYTES):
                    return True
        except OSError:
            continue
    return False


def _check_models(output: Named) -> None:
    place = output.place
    whole = output.use is Use.FOLDER  # one that replaces a bundle or model is what --force is for
    for folder in place.parents if whole else (place, *place.parents):
        if is_ours(folder):
            raise LopaError(
                f"{output.text} lies in {folder}, a bundle or model folder; choose a place outside"
            )
    folder = place.parent
    checkpoint = place.is_file() and (folder / CHECKPOINT_CONFIG).is_file()
    if checkpoint and any(folder.glob(CHECKPOINT_WEIGHTS)):
        raise LopaError(f"{output.text} is a file of the checkpoint {folder}; choose another name")


def _check_input(output: Named, source: Named) -> None:
    place, read = output.place, source.place
    folder = output.use in (Use.FOLDER, Use.WORK)
    replaced = place == read or (
        (output.use is Use.FOLDER and place in read.parents)
        or (output.use is Use.WORK and place == read.parent and read.is_file())
    )
    if replaced:
        verb = "would replace" if not folder or place == read else "holds"
        raise LopaError(f"{output.text} {verb} {source.text}, an input; choose another")
    if read in place.parents and read.is_dir():
        raise LopaError(f"{output.text} lies in {source.text}, an input; choose a place outside")


def _check_pair(output: Named, other: Named) -> None:
    if output.place == other.place:
        raise LopaError(f"{other.flag} and {output.text} are the same; choose two")
    for inner, outer in ((output, other), (other, output)):
        if outer.use is Use.FOLDER and outer.place in inner.place.parents:
            raise LopaError(
                f"{inner.text} lies in {outer.text}, which is replaced as a whole; "
                "choose a place outside"
            )


def _check_kind(output: Named) -> None:
    path = output.path
    if output.use in (Use.FOLDER, Use.WORK):
        return
    special = path.exists() and not path.is_file() and not path.is_dir()
    if output.use is Use.STREAM and special and not path.is_block_device():
        if not os.access(path, os.W_OK):
            raise LopaError(f"cannot write {path}: no permission")
        return
    if special:
        raise LopaError(f"{output.text} is a device or pipe, expected the name of a file")
    if output.use is not Use.STREAM and is_stdout(path):
        raise LopaError(f"{output.text} is where standard output goes; choose another name")
    if output.use is not Use.CACHE:
        check_file(path)


def _name(action: argparse.Action) -> str:
    longest = [option for option in action.option_strings if option.startswith("--")]
    return longest[0] if longest else str(action.metavar)


def _values(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _values(item)
    elif value is not None:
        yield value
