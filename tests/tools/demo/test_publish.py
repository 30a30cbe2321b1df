import json
from pathlib import Path

import torch
from lopa.tools.demo.model import DreamNetwork, Shape
from lopa.tools.demo.publish import write_checkpoint
from lopa.tools.demo.run import CHECKPOINT
from lopa.tools.demo.tokenizer import train_tokenizer
from safetensors.torch import load_file


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


def test_shipped_checkpoint_is_small() -> None:
    assert (CHECKPOINT / "model.safetensors").stat().st_size < 8_000_000
