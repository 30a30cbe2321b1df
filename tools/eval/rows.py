"""Rows of problem files: JSON lines (also gzipped), a JSON array, or a folder of JSON objects."""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...runtime.bounded_file import read_bounded, size_text
from ...runtime.contract import LopaError
from ...runtime.strict_json import MAX_BYTES, parse_json


@dataclass(frozen=True)
class Row:
    """One object with its place (`file:line`, for messages) and its number in the file from 1."""

    where: str
    number: int
    data: dict[str, Any]


@dataclass(frozen=True)
class Rows:
    """What a file holds: usable rows, a message per bad line, and the sha256 of the bytes read."""

    rows: tuple[Row, ...]
    faults: tuple[str, ...]
    sha256: str


def read_rows(path: Path, content: str = "problems") -> Rows:
    """Read all rows; raises LopaError only if the file as a whole cannot be read.

    `content` is what the message calls them.
    """
    rows, faults, digest = [], [], hashlib.sha256()
    for count, file in enumerate(_files(path), 1):
        text = _text(file, digest, content)
        alone = count if path.is_dir() else None
        for where, number, found in _objects(file, text, alone):
            if isinstance(found, dict):
                rows.append(Row(where, number, found))
            else:
                faults.append(f"{where}: {found}")
    return Rows(tuple(rows), tuple(faults), digest.hexdigest())


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.rglob("*.json"))
    if not found:
        raise LopaError(f"{path} has no .json files; give a .jsonl file or a folder with them")
    return found


def _text(path: Path, digest: Any, content: str) -> str:
    try:
        data = read_bounded(path, MAX_BYTES)
        digest.update(data)
        if path.suffix == ".gz":
            with gzip.open(io.BytesIO(data)) as stream:
                data = stream.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise LopaError(f"{path} has more than {size_text(MAX_BYTES)} unpacked")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise LopaError(f"{path} is not UTF-8 text (byte {error.start})") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise LopaError(f"{path} is not a complete gzip file ({error})") from None
    except OSError as error:
        raise LopaError(f"cannot read {content} from {path}: {error.strerror}") from None


def _objects(
    path: Path, text: str, alone: int | None
) -> Iterator[tuple[str, int, dict[str, Any] | str]]:
    """Place, number, and the object or what is wrong with it.

    `alone` is the number of a file that holds a single object.
    """
    if path.name.removesuffix(".gz").endswith(".json"):
        found = _parse(text)
        if alone is not None or not isinstance(found, list):
            yield str(path), alone or 1, _object(found)
            return
        for index, item in enumerate(found, 1):
            yield f"{path}#{index}", index, _object(item)
        return
    for line_number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{path}:{line_number}", line_number, _object(_parse(line))


def _parse(text: str) -> Any:
    try:
        return parse_json(text)
    except LopaError as error:
        return str(error)


def _object(found: Any) -> dict[str, Any] | str:
    if isinstance(found, dict):
        return found
    wrong = isinstance(found, str) and found.startswith("not valid JSON")
    return found if wrong else f"{type(found).__name__}, expected an object"
