from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lopa.export.checkpoint import CheckpointError
from lopa.export.tokenizer_files import TokenizerError, copy_tokenizer, read_tokenizer
from tokenizers import Tokenizer

from .tiny_checkpoint import (
    IM_END,
    MASK,
    PAD,
    TOKENIZER_SIZE,
    edit_json,
    write_checkpoint,
    write_tokenizer,
)

COPIED = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"]


def split_tokenizer(folder: Path) -> None:
    """Turn tokenizer.json into the vocab.json and merges.txt that slow tokenizers ship with."""
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]), encoding="utf-8")
    merges = [" ".join(merge) for merge in model["merges"]]
    text = "\n".join(["#version: 0.2", *merges, ""])
    (folder / "merges.txt").write_text(text, encoding="utf-8")
    (folder / "tokenizer.json").unlink()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Tokenizer]:
    """A fast tokenizer and the one rebuilt from its vocabulary and merges."""
    fast, slow, out = (tmp_path_factory.mktemp(name) for name in ("fast", "slow", "out"))
    for folder in (fast, slow):
        write_tokenizer(folder)
    split_tokenizer(slow)
    copy_tokenizer(slow, out)
    first, second = (Tokenizer.from_file(str(path / COPIED[0])) for path in (fast, out))
    return first, second


def test_facts(tmp_path: Path) -> None:
    facts = read_tokenizer(write_checkpoint(tmp_path))
    assert facts.size == TOKENIZER_SIZE
    assert (facts.mask_token_id, facts.pad_token_id) == (MASK, PAD)
    assert facts.eos_token_ids == (PAD, IM_END)
    assert facts.files == tuple(COPIED)
    assert facts.has_chat_template


def test_chat_template_may_be_absent_or_a_file(tmp_path: Path) -> None:
    edit_json(write_checkpoint(tmp_path) / "tokenizer_config.json", chat_template=None)
    assert not read_tokenizer(tmp_path).has_chat_template
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    facts = read_tokenizer(tmp_path)
    assert facts.has_chat_template
    assert facts.files[-1] == "chat_template.jinja"


def test_special_tokens_as_objects(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    token = {"content": "<|mask|>", "special": True}
    edit_json(tmp_path / "tokenizer_config.json", mask_token=None)
    edit_json(tmp_path / "special_tokens_map.json", mask_token=token)
    assert read_tokenizer(tmp_path).mask_token_id == MASK


def test_copy_is_byte_for_byte(tmp_path: Path) -> None:
    source, out = write_checkpoint(tmp_path / "in"), tmp_path / "out"
    out.mkdir()
    (source / "chat_template.jinja").write_text("x")
    names = copy_tokenizer(source, out)
    assert names == [*COPIED, "chat_template.jinja"]
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    assert all((out / name).read_bytes() == (source / name).read_bytes() for name in names)


def test_vocabulary_and_merges_give_the_same_facts(tmp_path: Path) -> None:
    fast = read_tokenizer(write_checkpoint(tmp_path))
    split_tokenizer(tmp_path)
    slow = read_tokenizer(tmp_path)
    assert slow.files == ("vocab.json", "merges.txt", *COPIED[1:])
    assert (slow.size, slow.mask_token_id, slow.pad_token_id, slow.eos_token_ids) == (
        fast.size,
        fast.mask_token_id,
        fast.pad_token_id,
        fast.eos_token_ids,
    )


def test_added_tokens_file_serves_when_the_config_has_none(tmp_path: Path) -> None:
    split_tokenizer(write_checkpoint(tmp_path))
    config = json.loads((tmp_path / COPIED[1]).read_text())
    added = {token["content"]: int(i) for i, token in config["added_tokens_decoder"].items()}
    edit_json(tmp_path / COPIED[1], added_tokens_decoder=None)
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    assert read_tokenizer(tmp_path).mask_token_id == MASK


@settings(max_examples=150, deadline=None)
@given(
    text=st.one_of(
        st.text(max_size=40),
        st.text("aeinotr 0123'sT\n\r\t.,<|é\u0301ﬁ", max_size=60),
        st.lists(st.sampled_from(["<|mask|>", "<|im_end|>", " the", "\n\n", "12"])).map("".join),
    )
)
def test_rebuilt_tokenizer_encodes_alike(pair: tuple[Tokenizer, Tokenizer], text: str) -> None:
    fast, slow = pair
    ids = fast.encode(text).ids
    assert slow.encode(text).ids == ids
    assert slow.decode(ids) == fast.decode(ids)


def test_rebuilt_golden_tokenizer_encodes_alike(golden: Path, tmp_path: Path) -> None:
    source, slow, out = golden / "checkpoints" / "dream-tiny", tmp_path / "slow", tmp_path / "out"
    slow.mkdir()
    out.mkdir()
    copy_tokenizer(source, slow)
    split_tokenizer(slow)
    assert copy_tokenizer(slow, out) == COPIED
    first, second = (Tokenizer.from_file(str(path / COPIED[0])) for path in (source, out))
    # Its own text splitting is GPT-2's, which agrees with Qwen2's on words.
    for text in (
        "The answer is here.",
        "<|im_start|>user a<|im_end|><|mask|><|mask|>",
        "Is it so?",
    ):
        assert second.encode(text).ids == first.encode(text).ids
    assert read_tokenizer(slow).size == 156


def test_added_tokens_missing_in_tokenizer_json_are_added(tmp_path: Path) -> None:
    source, out = write_checkpoint(tmp_path / "in"), tmp_path / "out"
    out.mkdir()
    config = json.loads((source / COPIED[1]).read_text())
    added = config["added_tokens_decoder"] | {str(TOKENIZER_SIZE): {"content": "<|extra|>"}}
    edit_json(source / COPIED[1], added_tokens_decoder=added)
    assert read_tokenizer(source).size == TOKENIZER_SIZE + 1
    copy_tokenizer(source, out)
    written = Tokenizer.from_file(str(out / COPIED[0]))
    assert written.encode("the<|extra|>").ids[-1] == TOKENIZER_SIZE


def test_contradicting_added_token(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    edit_json(tmp_path / COPIED[1], added_tokens_decoder={"3": {"content": "<|mask|>"}})
    with pytest.raises(TokenizerError, match=rf"'<\|mask\|>' has id {MASK} .* says 3"):
        read_tokenizer(tmp_path)


def test_contradicting_and_unknown_special_tokens(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    edit_json(tmp_path / COPIED[1], mask_token="<|other|>", pad_token="<|none|>")
    edit_json(tmp_path / COPIED[2], pad_token="<|none|>")
    with pytest.raises(TokenizerError) as caught:
        read_tokenizer(tmp_path)
    first, second = caught.value.faults
    assert "tokenizer_config.json says '<|other|>' and special_tokens_map.json says" in first
    assert "'<|none|>', which is no token of the tokenizer" in second


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / COPIED[0]).write_text("{}")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json is damaged"):
        read_tokenizer(tmp_path)
    (tmp_path / COPIED[0]).unlink()
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json \(nor vocab\.json with merges"):
        read_tokenizer(tmp_path)
    (tmp_path / COPIED[1]).write_text("nonsense")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json is not valid JSON"):
        read_tokenizer(tmp_path)


def test_malformed_added_tokens(tmp_path: Path) -> None:
    edit_json(write_checkpoint(tmp_path) / COPIED[1], added_tokens_decoder={"x": 1})
    with pytest.raises(TokenizerError, match="added_tokens_decoder is malformed"):
        read_tokenizer(tmp_path)
