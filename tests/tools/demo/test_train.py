from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lopa.tools.demo.corpus import GENERATED, Corpus, build_corpus
from lopa.tools.demo.model import DreamNetwork, Shape
from lopa.tools.demo.objective import Specials
from lopa.tools.demo.problems import generate
from lopa.tools.demo.tokenizer import train_tokenizer, training_texts
from lopa.tools.demo.train import Recipe, Trainer, batches, learning_rate_factor, parse_mix, train
from tokenizers import Tokenizer

TINY = Shape(
    vocab_size=512,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
)
RECIPE = Recipe(steps=10, causal_steps=4, batch_size=4, warm_up=2)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(training_texts(60, seed=1), 500)


@pytest.fixture(scope="module")
def corpus(tokenizer: Tokenizer) -> Corpus:
    return build_corpus(tokenizer, dict.fromkeys(GENERATED, 12), 3, frozenset())


def test_resume_equals_an_uninterrupted_run(
    corpus: Corpus, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    specials = Specials.of(tokenizer)
    whole = Trainer(RECIPE, TINY)
    train(whole, corpus, specials, tmp_path / "whole")
    first = Trainer(RECIPE, TINY)
    for batch in batches(RECIPE, corpus, specials, 0):
        first.update(batch)
        if first.step == 5:  # inside a pool, and inside the masked phase
            break
    first.save(tmp_path / "state.pt")
    second = Trainer(RECIPE, TINY)
    second.load(tmp_path / "state.pt")
    train(second, corpus, specials, tmp_path / "resumed")
    assert second.step == whole.step == 10
    for name, tensor in whole.net.state_dict().items():
        assert torch.equal(tensor, second.net.state_dict()[name]), name
        assert torch.equal(whole.average.state_dict()[name], second.average.state_dict()[name])


def test_training_lowers_the_loss(corpus: Corpus, tokenizer: Tokenizer) -> None:
    recipe = replace(RECIPE, steps=40, causal_steps=40)
    trainer = Trainer(recipe, TINY)
    losses = [trainer.update(b) for b in batches(recipe, corpus, Specials.of(tokenizer), 0)][:40]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


def test_learning_rate_warms_up_holds_and_decays() -> None:
    recipe = Recipe(steps=1000, warm_up=100, decay_share=0.25)
    steps = (0, 99, 749, 875, 1000)
    factors = [learning_rate_factor(recipe, step) for step in steps]
    assert factors == pytest.approx([0.01, 1.0, 1.0, 0.5, 0.02])


def test_mix_names_are_checked() -> None:
    assert parse_mix("words=1,sudoku=0.5") == {"words": 1.0, "sudoku": 0.5}
    with pytest.raises(ValueError, match="choose from"):
        parse_mix("chess=1")


def test_corpus_keeps_prompts_answers_and_leaves_out_the_excluded(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    problems = generate("words", 3, 5)
    corpus = build_corpus(tokenizer, {"words": 5}, 3, frozenset({problems[0].prompt}))
    assert len(corpus.prompt_lengths) == 4
    corpus.save(tmp_path / "corpus.npz")
    prompt, answer = Corpus.load(tmp_path / "corpus.npz").problem(0)
    assert tokenizer.decode(answer.tolist()) == problems[1].answer
    assert problems[1].prompt in tokenizer.decode(prompt.tolist())


def test_parameter_names_are_those_of_a_dream_checkpoint() -> None:
    names = set(DreamNetwork(TINY).state_dict())
    layer = {
        f"model.layers.0.{part}"
        for part in (
            "input_layernorm.weight",
            "post_attention_layernorm.weight",
            "mlp.gate_proj.weight",
            "mlp.up_proj.weight",
            "mlp.down_proj.weight",
            "self_attn.o_proj.weight",
            *(f"self_attn.{p}_proj.{kind}" for p in "qkv" for kind in ("weight", "bias")),
        )
    }
    assert names == layer | {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}


def test_attention_mask_hides_what_it_should() -> None:
    torch.manual_seed(0)
    net = DreamNetwork(TINY)
    ids = torch.arange(8)[None]
    positions = torch.arange(8)[None]
    causal = torch.ones(1, 8, 8, dtype=torch.bool).tril()
    before = net(ids, causal, positions)
    changed = ids.clone()
    changed[0, 5] = 99
    after = net(changed, causal, positions)
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.equal(before[:, 5:], after[:, 5:])
