"""Feeds: the contract inputs of one step as polygraphy takes them, a dict of arrays by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from polygraphy.json import from_json, to_json

from ...runtime.contract import INPUT_NAMES, Instance, LopaError, input_specs
from ...runtime.manifest import BundleManifest, ModelInfo
from ...runtime.staging import write_whole
from ...runtime.strict_json import read_json

Feed = Mapping[str, NDArray[Any]]


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
    write_whole(path, to_json([dict(feed) for feed in feeds]).encode())


def load_feeds(path: Path, manifest: BundleManifest) -> list[Feed]:
    """Read feeds and check them against the contract; raises LopaError listing what is wrong."""
    if not path.is_file():
        raise LopaError(
            f"no inputs at {path}; make them with: lopa compare ... --save-inputs {path}"
        )
    read_json(path)  # says where the text is broken
    text = path.read_text(encoding="utf-8-sig")
    try:
        feeds = from_json(text)
    except Exception as error:  # the decoders of arrays and tensors raise what they meet
        raise LopaError(
            f"{path} holds what polygraphy cannot decode; save the inputs again with --save-inputs"
        ) from error
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


def _faults(feed: Feed, manifest: BundleManifest) -> list[str]:
    missing = [name for name in INPUT_NAMES if name not in feed]
    if missing:
        return [f"no input {', '.join(missing)}"]
    strange = [name for name in INPUT_NAMES if not isinstance(feed[name], np.ndarray)]
    if strange:
        return [f"{', '.join(strange)} is no array"]
    if feed["input_ids"].ndim != 2 or feed["cache_mask"].ndim != 1 or feed["head_rows"].ndim != 1:
        return ["input_ids, cache_mask or head_rows has the wrong number of dimensions"]
    info, shape = manifest.model, shape_of(feed)
    if min(astuple(shape)) < 1:
        return [f"the step is empty: {shape.name}"]
    faults = []
    for spec in input_specs(shape, info.layers, info.kv_heads, info.head_dim, manifest.model_dtype):
        array = feed[spec.name]
        if array.shape != spec.shape:
            faults.append(f"{spec.name} is {list(array.shape)}, expected {list(spec.shape)}")
        if not np.can_cast(array.dtype, spec.dtype, "same_kind"):
            faults.append(f"{spec.name} is {array.dtype}, expected {spec.dtype}")
    if faults:
        return faults
    for name, bound, what in (
        ("input_ids", info.vocab_size, "the vocabulary has"),
        ("head_rows", shape.window_rows, "the window has"),
    ):
        least, most = int(feed[name].min()), int(feed[name].max())
        if not 0 <= least <= most < bound:
            faults.append(f"{name} go to {min(least, 0) or most}, {what} {bound}")
    return faults
