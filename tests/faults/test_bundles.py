"""Damaged bundles: refused in one line, or decoded to exactly the right tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from ..tools.compare.conftest import two_precisions
from .conftest import Record, chosen
from .damage import file_damages
from .drill import Drill, Outcome, Promise, Worker
from .fields import field_damages

__all__ = ["two_precisions"]

SETTINGS = ("--prompt", "the answer", "--max-new-tokens", 8, "--json")


def _generate(folder: Path, out: Path) -> list[object]:
    return ["generate", folder, *SETTINGS, "--threads", 1]


def _tokens(outcome: Outcome, out: Path) -> object:
    found = json.loads(outcome.out)
    return found["token_ids"], found["steps"], found["text"]


VERIFIED = Promise(_generate, _tokens)
UNVERIFIED = Promise(lambda folder, out: [*_generate(folder, out), "--no-verify"], _tokens, False)
RESEALED = Promise(_generate, _tokens, exact=False)


@pytest.fixture(scope="module")
def doubles() -> Iterator[Worker]:
    made = Worker("--doubles")
    yield made
    made.stop()


def test_onnxruntime(
    worker: Worker, tiny_bundle: Path, other_bundle: Path, tmp_path: Path, record: Record
) -> None:
    drill = Drill(worker, tiny_bundle, tmp_path, VERIFIED)
    files = chosen(file_damages(tiny_bundle, other_bundle, 1), 120, 1)
    fields = chosen(field_damages(tiny_bundle / "manifest.json", resealed=False), 60, 2)
    record("onnxruntime, generate", drill.run(chain(files, fields)))


def test_onnxruntime_unverified(
    worker: Worker, tiny_bundle: Path, other_bundle: Path, tmp_path: Path, record: Record
) -> None:
    drill = Drill(worker, tiny_bundle, tmp_path, UNVERIFIED)
    files = chosen(file_damages(tiny_bundle, other_bundle, 101), 60, 3)
    record("onnxruntime, generate --no-verify", drill.run(files))


def test_onnxruntime_resealed(
    worker: Worker, tiny_bundle: Path, tmp_path: Path, record: Record
) -> None:
    drill = Drill(worker, tiny_bundle, tmp_path, RESEALED)
    fields = chosen(field_damages(tiny_bundle / "manifest.json", resealed=True), 60, 4)
    record("onnxruntime, generate", drill.run(fields))


def test_two_precisions(
    worker: Worker, two_precisions: Path, other_bundle: Path, tmp_path: Path, record: Record
) -> None:
    drill = Drill(worker, two_precisions, tmp_path, VERIFIED)
    files = chosen(file_damages(two_precisions, other_bundle, 5), 60, 5)
    fields = chosen(field_damages(two_precisions / "manifest.json", resealed=False), 20, 6)
    record("onnxruntime in two precisions, generate", drill.run(chain(files, fields)))


def test_tensorrt(
    doubles: Worker, compiled: tuple[Path, Path], tmp_path: Path, record: Record
) -> None:
    """The library is a double; whatever is damaged is refused before that sees a byte of it."""
    bundle, other = compiled
    drill = Drill(doubles, bundle, tmp_path, VERIFIED)
    files = chosen(file_damages(bundle, other, 7), 60, 7)
    fields = chosen(field_damages(bundle / "manifest.json", resealed=False), 20, 8)
    record("tensorrt (double), generate", drill.run(chain(files, fields)))


def test_tensorrt_resealed(
    doubles: Worker, compiled: tuple[Path, Path], tmp_path: Path, record: Record
) -> None:
    drill = Drill(doubles, compiled[0], tmp_path, RESEALED)
    fields = chosen(field_damages(compiled[0] / "manifest.json", resealed=True), 40, 9)
    record("tensorrt (double), generate", drill.run(fields))
