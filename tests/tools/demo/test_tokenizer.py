import json
from pathlib import Path

import pytest
from lopa.tools.demo.problems import TASKS, generate
from lopa.tools.demo.tokenizer import (
    SPECIAL_TOKENS,
    chat_text,
    save_tokenizer,
    train_tokenizer,
    training_texts,
)
from tokenizers import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(training_texts(300, seed=1), 600)


def test_texts_come_back_unchanged(tokenizer: Tokenizer) -> None:
    for task in TASKS:
        for problem in generate(task, 2, 30):
            for text in (problem.prompt, problem.answer, "naïve ☃"):
                assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_digits_operators_and_newlines_are_single_tokens(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("12+7=19\n8/4*2-1").tokens == [*"12+7=19", "Ċ", *"8/4*2-1"]
    assert tokenizer.encode("47 apples").tokens == ["4", "7", "Ġapples"]
    digits = [token for token in tokenizer.get_vocab() if set(token) & set("0123456789")]
    assert sorted(digits) == list("0123456789")


def test_common_words_are_one_token(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("def").tokens == ["def"]
    assert tokenizer.encode(" How many").tokens == ["ĠHow", "Ġmany"]


def test_special_tokens_and_template(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert [row["content"] for row in settings["added_tokens_decoder"].values()] == list(
        SPECIAL_TOKENS
    )
    assert settings["pad_token"] == settings["eos_token"] == "<|endoftext|>"
    jinja2 = pytest.importorskip("jinja2")
    rendered = jinja2.Template(settings["chat_template"]).render(
        messages=[{"role": "user", "content": "Hi"}], add_generation_prompt=True
    )
    assert rendered == chat_text("Hi")
    start = tokenizer.token_to_id("<|im_start|>")
    assert start is not None
    assert tokenizer.encode(rendered).ids.count(start) == 2


def test_saved_tokenizer_equals_the_trained_one(tokenizer: Tokenizer, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path)
    loaded = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    text = generate("functions", 6, 1)[0].answer
    assert loaded.encode(text).ids == tokenizer.encode(text).ids
