from __future__ import annotations

from pathlib import Path

import pytest
from lopa.export.checkpoint import CheckpointError
from lopa.export.source import open_source

from .tiny_checkpoint import MASK, PAD, edit_json, write_checkpoint

SOURCES = ("config.json", "generation_config.json", "tokenizer_config.json")


@pytest.mark.parametrize(("role", "index"), [("mask_token", MASK), ("pad_token", PAD)])
def test_missing_in_config_names_both(tmp_path: Path, role: str, index: int) -> None:
    edit_json(write_checkpoint(tmp_path) / "config.json", **{f"{role}_id": None})
    with pytest.raises(CheckpointError) as caught:
        open_source(tmp_path)
    assert (
        f"{role}_id: config.json says nothing, the tokenizer's {role} says {index}, "
        f"generation_config.json says {index}"
    ) in str(caught.value)


@pytest.mark.parametrize(("role", "index"), [("mask_token", MASK), ("pad_token", PAD)])
def test_missing_in_tokenizer_names_both(tmp_path: Path, role: str, index: int) -> None:
    write_checkpoint(tmp_path)
    edit_json(tmp_path / "tokenizer_config.json", **{role: None})
    edit_json(tmp_path / "special_tokens_map.json", **{role: None})
    with pytest.raises(CheckpointError) as caught:
        open_source(tmp_path)
    said = f"{role}_id: config.json says {index}, the tokenizer's {role} says nothing"
    assert said in str(caught.value)


def test_contradictions_of_all_sources(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, mask_token_id=5, pad_token_id=6)
    with pytest.raises(CheckpointError) as caught:
        open_source(tmp_path)
    assert len(caught.value.faults) == 2
    assert (
        f"mask_token_id: config.json says 5, the tokenizer's mask_token says {MASK}"
        in (caught.value.faults[0])
    )


def test_generation_config_alone_contradicts(tmp_path: Path) -> None:
    edit_json(write_checkpoint(tmp_path) / "generation_config.json", mask_token_id=1)
    with pytest.raises(CheckpointError, match=r"generation_config\.json says 1; all must"):
        open_source(tmp_path)


def test_generation_config_may_be_silent(tmp_path: Path) -> None:
    (write_checkpoint(tmp_path) / "generation_config.json").unlink()
    assert open_source(tmp_path).spec.info.mask_token_id == MASK


def test_ids_beyond_the_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        open_source(write_checkpoint(tmp_path, vocab=MASK, eos_token_id=[3, 999, -1, "x"]))
    text = str(caught.value)
    assert f"the tokenizer has ids up to {MASK}, but config.json says vocab_size {MASK}" in text
    assert f"mask_token_id is {MASK}, expected an id below vocab_size {MASK}" in text
    for value in ("999", "-1", "'x'"):
        assert f"config.json: eos_token_id is {value}, expected an id below" in text


def test_mask_must_not_stop(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"mask id {MASK} is also an eos or pad id"):
        open_source(write_checkpoint(tmp_path, eos_token_id=MASK))
