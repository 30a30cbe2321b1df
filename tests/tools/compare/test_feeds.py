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
from lopa.tools.compare.feeds import load_feeds, masked_rows, save_feeds, shape_of
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
    feeds: list[tuple[dict[str, Any], str]] = [
        ({"head_rows": feed["head_rows"] + 6}, "head_rows go to 7, the window has 6"),
        ({"head_rows": feed["head_rows"] - 9}, "head_rows go to -9, the window has 6"),
        ({"input_ids": feed["input_ids"] / 2}, "input_ids is float64, expected int32"),
        ({"temperature": np.array(["0"])}, "temperature is <U1, expected float32"),
        ({"input_ids": feed["input_ids"][:0]}, "the step is empty: b0-w3-c5-r4"),
        ({"cache_mask": 3, "head_rows": [1]}, "cache_mask, head_rows is no array"),
    ]
    for changed, message in feeds:
        save_feeds([{**feed, **changed}], path)
        with pytest.raises(LopaError, match=f"step 1: {message}"):
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


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (bytes(range(256)), "is not UTF-8 text"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"[" + b"9" * 5000 + b"]", "a number of 5000 digits"),
        (b"[1, 2", "not valid JSON"),
        (b'[{"polygraphy_class": "ndarray", "array": 3}]', "polygraphy cannot decode"),
        (b'[{"polygraphy_class": "ndarray", "array": "AAAA"}]', "polygraphy cannot decode"),
        (b'[{"polygraphy_class": "Tensor", "tensor": "AAAA"}]', "polygraphy cannot decode"),
        (b'[{"polygraphy_class": "elsewhere"}]', "polygraphy cannot decode"),
        (b'\xef\xbb\xbf{"a": 1}', "holds no list of inputs"),
    ],
)
def test_broken_contents_are_one_described_fault(
    tiny_bundle: Path, tmp_path: Path, contents: bytes, message: str
) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(contents)
    with pytest.raises(LopaError, match=rf"bad\.json.*{message}"):
        load_feeds(path, read_bundle(tiny_bundle))


def test_a_failed_write_leaves_what_was_there(
    tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.json"
    path.write_text("before")

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(ZeroDivisionError):
        save_feeds([make_feed(read_bundle(tiny_bundle))], path)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


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
