"""The torch step module, before any export, against dense attention in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lopa.export.backbone import MASKED, StepModule, attention_bias
from lopa.export.layers import rms_norm, rotate
from lopa.export.source import open_source
from lopa.export.spec import parameter_shapes
from numpy.typing import NDArray

from ..runtime.dense_model import DenseModel
from .tiny_checkpoint import MASK, TOKENIZER_SIZE, read_tensors, write_checkpoint, write_tensors

SIZES: dict[str, dict[str, Any]] = {
    "grouped": {},
    "one-kv-head": {"kv_heads": 1, "layers": 1},
    "ungrouped-tied": {"heads": 4, "kv_heads": 4, "hidden": 32, "tied": True},
}


def load(folder: Path, dtype: torch.dtype = torch.float32) -> StepModule:
    """Build the step module of a checkpoint with its weights."""
    source = open_source(folder)
    module = StepModule(source.spec, dtype).eval()
    parameters = dict(module.named_parameters())
    assert parameters.keys() == parameter_shapes(source.spec).keys()
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(source.weights.read(name, parameter.dtype))
    return module


def run(
    module: StepModule,
    ids: NDArray[Any],
    positions: NDArray[Any],
    visible: NDArray[np.bool_],
    cache_mask: NDArray[np.bool_],
    cache: tuple[NDArray[Any], NDArray[Any]],
    temperature: float = 1.0,
) -> list[torch.Tensor]:
    """Run all rows of [B, W] ids with the head on every row."""
    dtype = module.dtype
    with torch.no_grad():
        outputs = module(
            torch.from_numpy(ids.astype(np.int32)),
            torch.from_numpy(positions.astype(np.int32)),
            torch.from_numpy(visible),
            torch.from_numpy(cache_mask),
            *(torch.from_numpy(part).to(dtype) for part in cache),
            torch.arange(ids.size, dtype=torch.int32),
            torch.tensor([temperature]),
        )
    return list(outputs)


@pytest.mark.parametrize("name", SIZES)
def test_step_equals_dense_attention(tmp_path: Path, name: str) -> None:
    folder = write_checkpoint(tmp_path, **SIZES[name])
    module, dense = load(folder), DenseModel(folder)
    rng = np.random.default_rng(0)
    ids, positions = rng.integers(0, 294, (2, 5)), rng.integers(0, 40, (2, 5))
    visible = (rng.random((10, 10)) < 0.5) | np.eye(10, dtype=np.bool_)
    cache_mask = rng.random(6) < 0.5
    cache = tuple(rng.standard_normal(part.shape) for part in dense.empty_cache(6))
    found = run(module, ids, positions, visible, cache_mask, (cache[0], cache[1]), 0.5)
    whole = np.concatenate([np.broadcast_to(cache_mask, (10, 6)), visible], 1)
    exact = dense(ids.reshape(-1), positions.reshape(-1), whole, (cache[0], cache[1]))
    logits = exact.logits / 0.5
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    picked = np.take_along_axis(log_probs, found[0].numpy().astype(np.intp), 1)
    assert found[1].numpy() == pytest.approx(picked, abs=2e-4)
    assert found[2].numpy() == pytest.approx(-(np.exp(log_probs) * log_probs).sum(1), abs=2e-4)
    assert found[3].numpy() == pytest.approx(exact.keys, abs=1e-4)
    assert found[4].numpy() == pytest.approx(exact.values, abs=1e-4)
    assert [part.dtype for part in found[:3]] == [torch.int32, torch.float32, torch.float32]


def test_half_precision_keeps_large_residuals(tmp_path: Path) -> None:
    """Activations of 1e4: their squares overflow float16, the norms must not."""
    folder = write_large_checkpoint(tmp_path)
    module, dense = load(folder, torch.float16), DenseModel(folder)
    assert {p.dtype for n, p in module.named_parameters() if "norm" in n} == {torch.float32}
    ids, positions = np.arange(20)[None], np.arange(20)[None]
    visible = np.ones((20, 20), np.bool_)
    found = run(module, ids, positions, visible, np.zeros(1, np.bool_), dense.empty_cache(1))
    assert all(torch.isfinite(part).all() for part in found)
    assert found[3].dtype == found[4].dtype == torch.float16
    exact = dense(ids[0], positions[0], visible)
    assert np.abs(dense.weights["model.embed_tokens.weight"][ids]).max() > 1e4
    assert np.abs(found[3].numpy() - exact.keys).max() < 0.05
    assert (found[0][:, 0].numpy() == exact.logits[:, :TOKENIZER_SIZE].argmax(1)).mean() > 0.9


def write_large_checkpoint(folder: Path) -> Path:
    """A checkpoint whose embedding rows, and with them the residual stream, are about 1e4."""
    write_checkpoint(folder)
    tensors = read_tensors(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"] *= 5e4
    tensors["lm_head.weight"][MASK] = 0
    write_tensors(folder, tensors)
    return folder


def test_rms_norm() -> None:
    x = torch.tensor([[3.0, 4.0], [3e4, 4e4]])
    weight = torch.tensor([1.0, 2.0])
    root = 12.5**0.5
    expected = [[3 / root, 8 / root]] * 2
    assert rms_norm(x, weight, 0.0).tolist() == [pytest.approx(row) for row in expected]
    assert rms_norm(torch.zeros(1, 2), weight, 1e-6).tolist() == [[0, 0]]


def test_partial_rotary_turns_the_first_part_of_a_head() -> None:
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    zero, one = torch.zeros(1, 1, 1), torch.ones(1, 1, 1)
    assert rotate(x, zero, one).tolist() == [[[-2, 1, 3, 4]]]  # a quarter turn of (1, 2)
    assert rotate(x, torch.zeros(1, 1, 2), torch.ones(1, 1, 2)).tolist() == [[[-3, -4, 1, 2]]]


def test_attention_bias_covers_cache_then_window() -> None:
    isolation = torch.tensor([[True, False], [False, True]])
    bias = attention_bias(isolation, torch.tensor([True, False, True]))
    hidden = MASKED
    assert bias.tolist() == [[0, hidden, 0, 0, hidden], [0, hidden, 0, hidden, 0]]


def test_candidates_leave_out_the_mask_and_undefined_ids(tmp_path: Path) -> None:
    """Whatever the logits say; probabilities and entropy still count every id."""
    module = load(write_checkpoint(tmp_path))
    logits = torch.zeros(2, 320)
    logits[0, MASK] = logits[1, 319] = 9.0
    logits[:, 7] = 2.0
    ids, log_probs, entropy = module.candidates(logits)
    assert ids[:, 0].tolist() == [7, 7]
    assert not ((ids == MASK) | (ids >= TOKENIZER_SIZE)).any()
    exact = torch.log_softmax(logits.double(), -1)
    assert log_probs[:, 0].tolist() == pytest.approx(exact[:, 7].tolist(), abs=1e-5)
    assert entropy.tolist() == pytest.approx((-(exact.exp() * exact).sum(-1)).tolist(), abs=1e-5)
    assert (torch.diff(log_probs, dim=1) <= 0).all()


def test_rotary_angles_are_exact_at_large_positions(tmp_path: Path) -> None:
    module = load(write_checkpoint(tmp_path, rope_theta=1e6))
    positions = np.array([[0, 1, 2047, 100_000]])
    cos, sin = module.angles(torch.from_numpy(positions))
    angles = positions.reshape(-1, 1) * 1e6 ** (-np.arange(8) / 8)
    assert cos[:3, 0].numpy() == pytest.approx(np.cos(angles[:3]), abs=2e-4)
    assert sin[:3, 0].numpy() == pytest.approx(np.sin(angles[:3]), abs=2e-4)
    assert cos[3, 0].numpy() == pytest.approx(np.cos(angles[3]), abs=1e-2)
