"""What can happen to the files of a folder, as seeded cases; each is done to a copy."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

TRUNCATIONS, FLIPS = 5, 50


@dataclass(frozen=True)
class Damage:
    """One thing done to one file of a folder."""

    kind: str
    name: str  # of the file and what is done to it
    apply: Callable[[Path], object]  # to the folder


def file_damages(folder: Path, other: Path, seed: int) -> Iterator[Damage]:
    """Every damage of every file; `other` is a folder of another model."""
    draw = random.Random(seed)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name, data = str(path.relative_to(folder)), path.read_bytes()
        for part in range(TRUNCATIONS):
            yield _truncate(name, data, len(data) * part // TRUNCATIONS)
        for _ in range(FLIPS):
            yield _flip(name, data, draw.randrange(len(data)), draw.randrange(8))
        if (other / name).is_file():
            yield _swap(name, (other / name).read_bytes())
        for kind, apply in KINDS.items():
            yield _done_to(kind, name, apply)


def _done_to(kind: str, name: str, apply: Callable[[Path], object]) -> Damage:
    return Damage(kind, name, lambda out: apply(out / name))


def _truncate(name: str, data: bytes, size: int) -> Damage:
    return Damage(
        "truncated", f"{name} at {size}", lambda out: (out / name).write_bytes(data[:size])
    )


def _flip(name: str, data: bytes, at: int, bit: int) -> Damage:
    def apply(out: Path) -> None:
        changed = bytearray(data)
        changed[at] ^= 1 << bit
        (out / name).write_bytes(bytes(changed))

    return Damage("bit flipped", f"{name} byte {at} bit {bit}", apply)


def _swap(name: str, data: bytes) -> Damage:
    return Damage("of another model", name, lambda out: (out / name).write_bytes(data))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


KINDS: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "unreadable": lambda path: path.chmod(0),
    "a folder": _folder,
    "a link to itself": _loop,
}
