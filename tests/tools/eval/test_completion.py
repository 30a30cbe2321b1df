from __future__ import annotations

from pathlib import Path
from typing import Any

import lopa
import pytest
from lopa.runtime.contract import LopaError
from lopa.runtime.options import DecodeOptions
from lopa.tools.eval.completion import CompletionModel, before, request_settings

BUDGET = {"max_gen_toks": 16}


def test_requests_are_decoded_as_they_come_and_cut_at_a_stop_string(tiny_bundle: Path) -> None:
    model = CompletionModel(tiny_bundle, threads=1, lookahead=2)
    session = lopa.open_bundle(tiny_bundle, threads=1)
    whole = session.generate("one two", raw=True, lookahead=2, max_new_tokens=16)
    stop = whole.text[3:5]
    plain, cut = model.plan([("one two", BUDGET), ("one two", {**BUDGET, "until": [stop]})])
    assert model.complete(plain) == whole.text
    assert model.complete(cut) == whole.text[: whole.text.index(stop)]
    found = model.record
    assert (found["requests"], found["tokens"], found["steps"]) == (2, 32, 2 * whole.steps)
    assert found["tpf"] == round(whole.tpf, 4)
    assert found["settings"]["lookahead"] == 2
    assert found["bundle"]["checkpoint"] == session.manifest.source.checkpoint


def test_faults_of_all_requests_are_listed_before_anything_is_decoded(tiny_bundle: Path) -> None:
    model = CompletionModel(tiny_bundle, threads=1)
    with pytest.raises(LopaError) as caught:
        model.plan([("", BUDGET), ("fine", BUDGET), ("x", {"num_beams": 4}), ("x" * 400, BUDGET)])
    first, second, third = str(caught.value).split("; request ")
    assert first == "request 1: the prompt is empty; give at least one character"
    assert second.startswith("3: unknown generation setting num_beams; known: until, do_s")
    assert third.startswith("4: a prompt of ")
    assert model.results == []


def test_a_budget_is_cut_to_the_context(tiny_bundle: Path) -> None:
    model = CompletionModel(tiny_bundle, threads=1, strategy="d2f")
    (plan,) = model.plan([("one", {"max_gen_toks": 4000})])
    assert plan.options.max_new_tokens == 96 - len(plan.ids)
    assert model.record["shortened"] == 1
    (plan,) = model.plan([("one", {"max_gen_toks": 3})])
    assert plan.options.max_new_tokens == 8  # d2f adds whole blocks
    with pytest.raises(LopaError, match="request 1: max new tokens is 'x', expected a whole numb"):
        model.plan([("one", {"max_gen_toks": "x"})])


def test_equal_requests_that_sample_get_seeds_in_a_row(tiny_bundle: Path) -> None:
    model = CompletionModel(tiny_bundle, threads=1, seed=7)
    sampled = {**BUDGET, "do_sample": True, "temperature": 0.9}
    plans = model.plan([("a", sampled), ("b", sampled), ("a", sampled), ("a", BUDGET)])
    assert [plan.options.seed for plan in plans] == [7, 7, 8, 7]
    assert [plan.options.temperature for plan in plans] == [0.9, 0.9, 0.9, 0.0]


@pytest.mark.parametrize(
    ("asked", "expected", "until"),
    [
        ({}, {}, ()),
        ({"until": "\n"}, {}, ("\n",)),
        ({"until": ["Q:", "", "\n"]}, {}, ("Q:", "\n")),
        ({"max_gen_toks": 5, "max_tokens": 9}, {"max_new_tokens": 5}, ()),
        ({"max_tokens": 9}, {"max_new_tokens": 9}, ()),
        ({"do_sample": False, "temperature": 0.7}, {"temperature": 0.0}, ()),
        ({"do_sample": True}, {"temperature": 1.0}, ()),
        ({"temperature": 0.7, "top_p": 0.9}, {"temperature": 0.7, "top_p": 0.9}, ()),
        ({"lookahead": 1}, {"lookahead": 1}, ()),
    ],
)
def test_request_settings(
    asked: dict[str, Any], expected: dict[str, Any], until: tuple[str, ...]
) -> None:
    assert request_settings(DecodeOptions(), asked) == (DecodeOptions(**expected), until)


def test_the_models_own_temperature_stays_unless_a_request_says_otherwise() -> None:
    warm = DecodeOptions(temperature=0.8)
    assert request_settings(warm, {})[0].temperature == 0.8
    assert request_settings(warm, {"do_sample": True})[0].temperature == 0.8
    assert request_settings(warm, {"do_sample": False})[0].temperature == 0.0
    with pytest.raises(LopaError, match="until is 5, expected text or a list of texts"):
        request_settings(warm, {"until": 5})


def test_unknown_model_arguments_are_named(tiny_bundle: Path) -> None:
    with pytest.raises(LopaError, match="unknown model argument lookahed; known: bundle, provider"):
        CompletionModel(tiny_bundle, lookahed=3)
    with pytest.raises(LopaError, match="lookahead is 'x', expected a whole number"):
        CompletionModel(tiny_bundle, lookahead="x")


def test_messages_are_rendered_with_an_open_end(tiny_bundle: Path) -> None:
    model = CompletionModel(tiny_bundle, threads=1)
    messages = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "It is "}]
    closed = model.render(messages[:1])
    assert closed == model.session.codec.render(messages[:1])
    opened = model.render(messages, continued=True)
    assert opened.endswith("It is")
    assert "2+2" in opened


def test_the_first_stop_string_counts() -> None:
    assert before("one two three", ["three", "two"]) == "one "
    assert before("one", ["two"]) == "one"
    assert before("one", []) == "one"
