import json
from pathlib import Path

import torch
from lopa.tools.demo.evaluate import (
    CHECKPOINT,
    Decoding,
    completion_text,
    decode_all,
    evaluate,
)
from lopa.tools.demo.model import DreamNetwork, Shape, load_network
from lopa.tools.demo.objective import Specials
from lopa.tools.demo.problems import generate
from lopa.tools.demo.publish import write_checkpoint
from lopa.tools.demo.tokenizer import train_tokenizer
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

EOS, MASK = 60, 61


class Oracle(DreamNetwork):
    """Predicts token 5 everywhere, with confidence only inside the first `sure` positions."""

    def __init__(self, sure: int, eos_from: int) -> None:
        super().__init__(Shape(64, 16, 16, 1, 1, 1))
        self.sure, self.eos_from = sure, eos_from

    def forward(self, ids: Tensor, attend: Tensor, positions: Tensor) -> Tensor:
        logits = torch.zeros(*ids.shape, 64)
        logits[..., 5] = 2.0
        logits[:, : self.sure, 5] = 20.0
        logits[:, self.eos_from :, EOS] = 30.0
        return logits


def test_sure_positions_fill_at_once_and_end_of_text_stops_new_blocks() -> None:
    decodes = decode_all(Oracle(100, 20), [[1, 2, 3]], Decoding(), Specials(EOS, MASK))
    assert decodes[0].ids[3:] == [5] * 18 + [EOS] * 14
    # One forward per block: the second is added once the first is filled.
    assert decodes[0].forwards == 2


def test_unsure_positions_fill_one_by_one() -> None:
    decoding = Decoding(max_blocks=1)
    (decode,) = decode_all(Oracle(0, 99), [[1, 2, 3]], decoding, Specials(EOS, MASK))
    assert decode.forwards == 16
    assert decode.ids[3:] == [5] * 16


def test_full_window_gives_the_same_for_a_network_without_attention() -> None:
    prompts = [[1, 2, 3], [4] * 9]
    for full in (False, True):
        decoding = Decoding(full_window=full, max_blocks=2)
        decodes = decode_all(Oracle(8, 99), prompts, decoding, Specials(EOS, MASK))
        assert [decode.blocks for decode in decodes] == [2, 2]


def test_checkpoint_has_the_dream_layout(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["12+7=19\n" * 5], 300)
    net = DreamNetwork(Shape(320, 16, 16, 1, 2, 1))
    for _ in range(2):  # the second call replaces the first folder
        write_checkpoint(net, tokenizer, tmp_path / "checkpoint")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]
    config = json.loads((tmp_path / "checkpoint" / "config.json").read_text())
    assert config["model_type"] == "Dream"
    assert config["mask_token_id"] == tokenizer.token_to_id("<|mask|>")
    assert config["pad_token_id"] == config["eos_token_id"]
    tensors = load_file(tmp_path / "checkpoint" / "model.safetensors")
    assert torch.equal(tensors["lm_head.weight"], net.lm_head.weight)


def test_completion_ends_at_end_of_text() -> None:
    tokenizer = train_tokenizer(["answer: 14"] * 5, 300)
    specials = Specials.of(tokenizer)
    ids = tokenizer.encode("answer: 14").ids
    (decode,) = decode_all(Oracle(99, 0), [[1]], Decoding(max_blocks=1), Specials(EOS, MASK))
    decode.ids = [1, *ids, specials.eos, 7]
    assert completion_text(tokenizer, decode, specials.eos) == "answer: 14"


def test_shipped_checkpoint_is_small_and_solves_problems() -> None:
    assert (CHECKPOINT / "model.safetensors").stat().st_size < 8_000_000
    net = load_network(CHECKPOINT)
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    for task in ("sudoku", "words"):
        problems = generate(task, 31, 10, held_out=True)
        assert evaluate(net, tokenizer, problems, Decoding())["accuracy"] >= 0.7
