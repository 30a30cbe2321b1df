from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from lopa.runtime.manifest import BUNDLE_FILE, ManifestError, read_bundle, write_manifest
from lopa.runtime.seal import digest, seal_faults, sealed

from .manifests import bundle_manifest


def test_digest_is_of_the_canonical_form() -> None:
    canonical = b'{"a":[1,0.5,null,true],"b":"\\u00e9"}'
    assert digest({"b": "é", "a": [1, 0.5, None, True]}) == hashlib.sha256(canonical).hexdigest()


def test_every_change_of_a_section_is_named() -> None:
    seal = sealed({"model": {"layers": 2}, "fast": None, "files": {}})
    assert seal_faults(seal) == []
    assert sealed(seal) == seal
    assert seal_faults(seal | {"model": {"layers": 3}}) == ["model was changed"]
    assert seal_faults(seal | {"colour": 1}) == ["'colour' was added"]
    assert seal_faults({**seal, "digests": {**seal["digests"], "x": ""}}) == ["'x' was removed"]
    assert seal_faults({k: v for k, v in seal.items() if k != "fast"}) == ["'fast' was removed"]
    assert seal_faults({"model": {}}) == ["digests is missing"]
    assert seal_faults({"model": {}, "digests": []}) == ["digests is no object"]


@pytest.mark.parametrize("name", ["block_size", "logit_shift", "mask_token_id", "pad_token_id"])
def test_what_decides_tokens_cannot_change_unseen(tmp_path: Path, name: str) -> None:
    path = write_manifest(tmp_path, bundle_manifest())
    data = json.loads(path.read_text(encoding="utf-8"))
    data["model"][name] -= 1
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ManifestError) as caught:
        read_bundle(tmp_path)
    assert str(caught.value) == (
        f"{path} is not as lopa wrote it: model was changed; build it again, or accept it as it "
        f"is with: lopa inspect {tmp_path} --reseal"
    )


def test_an_older_manifest_says_what_to_do(tmp_path: Path) -> None:
    path = write_manifest(tmp_path, bundle_manifest())
    data = json.loads(path.read_text(encoding="utf-8")) | {"schema": 1}
    del data["digests"]
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ManifestError, match=r"is of schema 1, which has no digests.* --reseal$"):
        read_bundle(tmp_path)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('{"schema": 2, "schema": 2}', "key 'schema' is given twice"),
        ('{"schema": NaN}', "NaN is no JSON value"),
        ('{"schema": 1e999}', "1e999 is too large a number"),
        ('{"schema": 2, "x": ' + "9" * 5000 + "}", "a number of 5000 digits"),
        ('{"schema": ' + "[" * 10_000 + "]" * 10_000 + "}", "nested too deeply"),
    ],
)
def test_json_beyond_the_standard(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / BUNDLE_FILE
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ManifestError) as caught:
        read_bundle(tmp_path)
    assert str(caught.value) == f"{path}: not valid JSON ({fault}); build it again"
