from __future__ import annotations

import json
from pathlib import Path

import pytest
from lopa.runtime.prompt import TextCodec

FILES = ("d2f_dream", "lopa_dream", "lopa_variants_dream", "dream_vanilla")


@pytest.mark.parametrize("file", FILES)
def test_texts_encode_to_the_reference_ids(golden: Path, file: str) -> None:
    data = json.loads((golden / "decode" / f"{file}.json").read_text(encoding="utf-8"))
    codec = TextCodec(golden / "checkpoints" / data["checkpoint"], ())
    assert data["prompts"]
    for prompt in data["prompts"]:
        found = codec.encode(prompt["text"], raw=prompt["kind"] == "raw")
        assert found == prompt["ids"], prompt["index"]
