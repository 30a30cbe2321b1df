from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lopa.runtime.contract import Instance, LopaError, input_specs
from lopa.runtime.manifest import BundleManifest, read_bundle
from lopa.tools.compare.feeds import load_feeds, masked_rows, save_feeds, shape_of, written_whole
from numpy.typing import NDArray

from ...runtime.manifests import model_info

SHAPE = Instance(2, 3, 5, 4)


def make_feed(manifest: BundleManifest, shape: Instance = SHAPE) -> dict[str, NDArray[Any]]:
    info = manifest.model
    specs = input_specs(shape, info.layers, info.kv_heads, info.head_dim, manifest.model_dtype)
    generator = np.random.default_rng(1)
    return {spec.name: generator.integers(0, 2, spec.shape).astype(spec.dtype) for spec in specs}


def test_feeds_are_read_as_they_were_saved(tiny_bundle: Path, tmp_path: Path) -> None:
    manifest = read_bundle(tiny_bundle)
    feeds = [make_feed(manifest), make_feed(manifest, Instance(1, 4, 8, 2))]
    save_feeds(feeds, tmp_path / "inputs.json")
    assert [path.name for path in tmp_path.iterdir()] == ["inputs.json"]
    loaded = load_feeds(tmp_path / "inputs.json", manifest)
    assert [shape_of(feed) for feed in loaded] == [SHAPE, Instance(1, 4, 8, 2)]
    for before, after in zip(feeds, loaded, strict=True):
        assert before.keys() == after.keys()
        for name, array in before.items():
            assert after[name].dtype == array.dtype
            assert (after[name] == array).all()


def test_feeds_of_another_model_are_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    manifest = read_bundle(tiny_bundle)
    path = tmp_path / "inputs.json"
    deeper = dataclasses.replace(manifest, model=dataclasses.replace(manifest.model, layers=3))
    save_feeds([make_feed(deeper)], path)
    message = r"cache_keys is \[3, 2, 5, 16\], expected \[2, 2, 5, 16\]; and 1 more"
    with pytest.raises(LopaError, match=message):
        load_feeds(path, manifest)
    feed = make_feed(manifest)
    save_feeds([{**feed, "input_ids": feed["input_ids"] + 320}], path)
    with pytest.raises(LopaError, match="input_ids go to 321, the vocabulary has 320"):
        load_feeds(path, manifest)
    save_feeds([{"x": feed["input_ids"]}], path)
    with pytest.raises(LopaError, match="step 1: no input input_ids, position_ids"):
        load_feeds(path, manifest)


def test_files_that_hold_no_feeds_are_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    manifest = read_bundle(tiny_bundle)
    with pytest.raises(LopaError, match="no inputs at"):
        load_feeds(tmp_path / "none.json", manifest)
    for text in ("[1, 2", "[]", "{}", '{"a": 1}', "[3]"):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(LopaError, match=r"bad.json"):
            load_feeds(tmp_path / "bad.json", manifest)


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("before")

    def write() -> None:
        with written_whole(path) as draft:
            draft.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(LopaError, match=r"ends in .json"), written_whole(tmp_path / "out"):
        pass


@given(
    st.integers(0, 1),
    st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=3),
    st.data(),
)
def test_masked_rows_are_those_that_predict_a_mask(
    shift: int, masked: list[list[bool]], data: st.DataObject
) -> None:
    model = model_info(logit_shift=shift)
    ids = np.where(np.array(masked), model.mask_token_id, model.mask_token_id - 1)
    rows = data.draw(st.lists(st.integers(0, ids.size - 1), min_size=1, max_size=8))
    found = masked_rows({"input_ids": ids, "head_rows": np.array(rows)}, model)
    expected = []
    for index, row in enumerate(rows):
        branch, offset = divmod(row, 4)
        inside = offset + shift < 4
        if row not in rows[:index] and inside and masked[branch][offset + shift]:
            expected.append(index)
    assert found.tolist() == expected
