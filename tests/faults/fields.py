"""Every field of a manifest, removed, retyped or made absurd."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from lopa.runtime.seal import DIGESTS, sealed

from .damage import Damage

MARK = "\u0001"  # stands in the text for what JSON libraries would not write
DEPTH = 10_000
Keys = tuple[str | int, ...]
TEXTS = {
    "NaN": "NaN",
    "nested 10,000 deep": "[" * DEPTH + "]" * DEPTH,
    "of 400 digits": "9" * 400,
}
VALUES: dict[str, Any] = {"negative": -3, "huge": 2**62, "zero": 0, "text": "x", "null": None}


def field_damages(path: Path, resealed: bool) -> Iterator[Damage]:
    """Every damage of every field of the manifest at `path`.

    `resealed` ones carry the digests of what they say: the seal does not stop them.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    if resealed:
        del data[DIGESTS]
    kind = "field, resealed" if resealed else "field"
    for keys in _paths(data):
        where = ".".join(map(str, keys))
        yield _damage(kind, path.name, f"{where} removed", _without(data, keys), resealed)
        for name, value in VALUES.items():
            changed = _with(data, keys, value)
            yield _damage(kind, path.name, f"{where} {name}", changed, resealed)
        retyped = [_at(data, keys)]
        yield _damage(kind, path.name, f"{where} in a list", _with(data, keys, retyped), resealed)
        if not resealed:  # such texts are no JSON that could be sealed
            marked = json.dumps(_with(data, keys, MARK))
            for name, text in TEXTS.items():
                whole = marked.replace(json.dumps(MARK), text)
                yield _written(kind, path.name, f"{where} {name}", whole)


def _damage(kind: str, file: str, name: str, data: dict[str, Any], resealed: bool) -> Damage:
    return _written(kind, file, name, json.dumps(sealed(data) if resealed else data))


def _written(kind: str, file: str, name: str, text: str) -> Damage:
    return Damage(kind, f"{file} {name}", lambda out: (out / file).write_text(text))


def _paths(value: Any, keys: Keys = ()) -> Iterator[Keys]:
    if keys:
        yield keys
    inner: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value[:2])
    for key, item in inner:
        yield from _paths(item, (*keys, key))


def _at(data: Any, keys: Keys) -> Any:
    for key in keys:
        data = data[key]
    return data


def _with(data: dict[str, Any], keys: Keys, value: Any) -> dict[str, Any]:
    changed: dict[str, Any] = json.loads(json.dumps(data))
    _at(changed, keys[:-1])[keys[-1]] = value
    return changed


def _without(data: dict[str, Any], keys: Keys) -> dict[str, Any]:
    changed: dict[str, Any] = json.loads(json.dumps(data))
    del _at(changed, keys[:-1])[keys[-1]]
    return changed
