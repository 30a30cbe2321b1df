"""Feeds: the contract inputs of one step as polygraphy takes them, a dict of arrays by name."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from polygraphy.exception import PolygraphyException
from polygraphy.json import load_json, save_json

from ...runtime.contract import INPUT_NAMES, Instance, LopaError, input_specs
from ...runtime.manifest import BundleManifest, ModelInfo

Feed = Mapping[str, NDArray[Any]]
DESCRIPTION = "decode steps"


def shape_of(feed: Feed) -> Instance:
    """The shape of the step that a feed belongs to."""
    branches, window = feed["input_ids"].shape
    return Instance(branches, window, feed["cache_mask"].shape[0], feed["head_rows"].shape[0])


def masked_rows(feed: Feed, model: ModelInfo) -> NDArray[np.intp]:
    """Indices [n] of the head rows that predict a masked position, each window row once."""
    ids = feed["input_ids"]
    window = ids.shape[1]
    rows, first = np.unique(feed["head_rows"], return_index=True)
    branches, offsets = rows // window, rows % window + model.logit_shift
    inside = offsets < window
    masked = np.zeros(len(rows), np.bool_)
    masked[inside] = ids[branches[inside], offsets[inside]] == model.mask_token_id
    return np.sort(first[masked])


def save_feeds(feeds: Sequence[Feed], path: Path) -> None:
    """Write feeds as `polygraphy run --load-inputs` reads them."""
    with written_whole(path) as draft:
        save_json([dict(feed) for feed in feeds], str(draft), description=DESCRIPTION)


def load_feeds(path: Path, manifest: BundleManifest) -> list[Feed]:
    """Read feeds and check them against the contract; raises LopaError listing what is wrong."""
    if not path.is_file():
        raise LopaError(
            f"no inputs at {path}; make them with: lopa compare ... --save-inputs {path}"
        )
    try:
        feeds = load_json(str(path), description=DESCRIPTION)
    except (PolygraphyException, ValueError, KeyError, TypeError) as error:
        raise LopaError(f"{path} is not a polygraphy file of inputs: {error}") from error
    if not isinstance(feeds, list) or not feeds or not all(isinstance(f, Mapping) for f in feeds):
        raise LopaError(f"{path} holds no list of inputs; save them with --save-inputs")
    faults = [
        f"step {number}: {fault}"
        for number, feed in enumerate(feeds, 1)
        for fault in _faults(feed, manifest)
    ]
    if faults:
        more = f"; and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise LopaError(f"{path} does not fit the bundle: {faults[0]}{more}")
    return feeds


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path` that takes its name when all is written.

    It keeps the extension: polygraphy takes a name without one for a folder.
    """
    if path.suffix != ".json":
        raise LopaError(f"{path}: expected a name that ends in .json")
    if path.is_dir():
        raise LopaError(f"{path} is a folder, expected a file name")
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=".json", dir=path.parent)
    except OSError as error:
        raise LopaError(f"cannot write {path}: {error.strerror}") from None
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        draft.chmod(0o644)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _faults(feed: Feed, manifest: BundleManifest) -> list[str]:
    missing = [name for name in INPUT_NAMES if name not in feed]
    if missing:
        return [f"no input {', '.join(missing)}"]
    if feed["input_ids"].ndim != 2 or feed["cache_mask"].ndim != 1 or feed["head_rows"].ndim != 1:
        return ["input_ids, cache_mask or head_rows has the wrong number of dimensions"]
    info = manifest.model
    specs = input_specs(
        shape_of(feed), info.layers, info.kv_heads, info.head_dim, manifest.model_dtype
    )
    faults = [
        f"{spec.name} is {list(feed[spec.name].shape)}, expected {list(spec.shape)}"
        for spec in specs
        if feed[spec.name].shape != spec.shape
    ]
    ids = feed["input_ids"]
    if not faults and ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < info.vocab_size:
        faults.append(f"input_ids go to {int(ids.max())}, the vocabulary has {info.vocab_size}")
    return faults
