from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lopa.runtime.prompt import PromptError, TextCodec, stop_index

from ..export.tiny_checkpoint import (
    CHAT_TEMPLATE,
    IM_END,
    IM_START,
    MASK,
    PAD,
    edit_json,
    write_tokenizer,
)

CONFIG = "tokenizer_config.json"


def codec(folder: Path, **config: Any) -> TextCodec:
    """A codec of the tiny tokenizer with keys of its config changed (None removes one)."""
    write_tokenizer(folder)
    edit_json(folder / CONFIG, **config)
    return TextCodec(folder, (PAD, IM_END))


def test_chat_prompts_are_templated_and_raw_ones_are_not(tmp_path: Path) -> None:
    text = codec(tmp_path)
    chat = text.encode("the answer", raw=False)
    assert [token for token in chat if token >= PAD] == [IM_START, IM_END, IM_START]
    assert text.tokenizer.decode(chat, skip_special_tokens=False) == (
        "<|im_start|>user\nthe answer<|im_end|>\n<|im_start|>assistant"  # as Jinja ends a template
    )
    raw = text.encode("the answer", raw=True)
    assert text.tokenizer.decode(raw) == "the answer"
    assert not {PAD, IM_START, IM_END} & set(raw)


def test_without_a_template_only_raw_prompts_work(tmp_path: Path) -> None:
    text = codec(tmp_path, chat_template=None)
    with pytest.raises(PromptError, match=r"has no chat template; use --raw \(raw=True\)"):
        text.encode("hello", raw=False)
    assert text.decode(text.encode("hello", raw=True)) == "hello"


@pytest.mark.parametrize("raw", [True, False])
def test_empty_prompt(tmp_path: Path, raw: bool) -> None:
    with pytest.raises(PromptError, match="the prompt is empty; give at least one character"):
        codec(tmp_path).encode("", raw)


def test_the_template_file_comes_before_the_config(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("file: {{ messages[0].content }}", "utf-8")
    text = codec(tmp_path)
    assert text.render([{"role": "user", "content": "hi"}]) == "file: hi"


def test_a_list_of_templates_offers_the_default(tmp_path: Path) -> None:
    named = [
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": CHAT_TEMPLATE},
    ]
    text = codec(tmp_path, chat_template=named)
    assert text.render([{"role": "user", "content": "hi"}]).startswith("<|im_start|>user\nhi")
    only_tools = codec(tmp_path, chat_template=named[:1])
    with pytest.raises(PromptError, match="no chat template"):
        only_tools.encode("hi", raw=False)


def test_special_tokens_reach_the_template(tmp_path: Path) -> None:
    text = codec(
        tmp_path, chat_template="{{ bos_token }}|{{ eos_token }}", bos_token={"content": "<s>"}
    )
    assert text.render([]) == "<s>|<|endoftext|>"


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", "Expected an expression"),
        ("{{ messages[0].content.missing.deeper }}", "has no attribute 'missing'"),
        ("{{ messages.append(1) }}", "of 'list' object is unsafe"),
    ],
)
def test_a_failing_template_is_a_prompt_error(tmp_path: Path, template: str, reason: str) -> None:
    text = codec(tmp_path, chat_template=template)
    with pytest.raises(PromptError, match=r"the chat template failed: .*; use --raw") as caught:
        text.encode("hi", raw=False)
    assert reason in str(caught.value)
    assert text.decode(text.encode("hi", raw=True)) == "hi"


def test_templates_may_break_loops(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{% break %}{% endfor %}"
    text = codec(tmp_path, chat_template=template)
    assert text.render([{"content": "a"}, {"content": "b"}]) == "a"


def test_text_ends_before_the_first_stop_token(tmp_path: Path) -> None:
    text = codec(tmp_path)
    answer, more = text.encode("the answer", raw=True), text.encode(" and more", raw=True)
    assert text.decode([*answer, IM_END, *more, PAD]) == "the answer"
    assert text.decode([*answer, PAD, PAD]) == "the answer"
    assert text.decode([PAD, *answer]) == ""
    assert text.decode([*answer, *more]) == "the answer and more"
    assert text.decode([]) == ""


def test_a_token_that_is_no_stop_token_does_not_stop(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    text = TextCodec(tmp_path, (IM_END,))  # the pad token is not a stop token here
    answer = text.encode("one", raw=True)
    assert text.decode([*answer, PAD, *answer]) == "oneone"


def test_stop_index() -> None:
    assert stop_index([4, 5, 6, 5], frozenset({5, 6})) == 1
    assert stop_index([4, 5], frozenset({9})) == 2
    assert stop_index([], frozenset({9})) == 0


@pytest.mark.parametrize(
    "written", ["a\n\n\nb\n\n", "\n", "  two  spaces ", "tab\tend\r\n", "é€😀"]
)
def test_text_round_trips(tmp_path: Path, written: str) -> None:
    text = codec(tmp_path)
    assert text.decode(text.encode(written, raw=True)) == written


def test_the_text_of_the_mask_token_is_one_id(tmp_path: Path) -> None:
    text = codec(tmp_path)
    assert text.encode("<|mask|>", raw=True) == [MASK]
    assert text.piece(MASK) == "<|mask|>"


def test_a_bundle_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=r"has no tokenizer\.json; give prompt_ids or rebuild it"):
        TextCodec(tmp_path, ())


def test_a_missing_tokenizer_config_only_costs_the_template(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / CONFIG).unlink()
    text = TextCodec(tmp_path, (PAD,))
    assert text.decode(text.encode("ok", raw=True)) == "ok"
    with pytest.raises(PromptError, match="no chat template"):
        text.encode("ok", raw=False)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b'{"version": "1.0", "mod'),
        ("tokenizer_config.json", b"{"),
        ("chat_template.jinja", b"\xff\xfe"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    codec(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PromptError, match=r"is damaged \(.*\); build the bundle again$"):
        TextCodec(tmp_path, (0,))


def test_only_text_is_encoded(tmp_path: Path) -> None:
    wrong: Any = 5
    with pytest.raises(PromptError, match="the prompt is 5, expected text"):
        codec(tmp_path).encode(wrong, raw=True)
