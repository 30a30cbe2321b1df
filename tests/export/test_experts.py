"""Routed experts against an expert-by-expert loop in float64."""

from __future__ import annotations

import math

import pytest
import torch
from lopa.export.experts import Experts, chosen
from lopa.export.spec import MoeSpec
from torch import Tensor

HIDDEN = 6
SPECS = {
    "softmax": MoeSpec(8, 2, 5, frozenset()),
    "unnormalised": MoeSpec(8, 3, 5, frozenset(), normalised=False),
    "one": MoeSpec(4, 1, 5, frozenset(), sigmoid=True, normalised=False, scaling=1.5),
    "grouped": MoeSpec(
        8,
        2,
        5,
        frozenset(),
        sigmoid=True,
        scaling=2.5,
        groups=4,
        kept_groups=2,
        router_bias=True,
        shared_size=7,
    ),
    "groups-of-one": MoeSpec(4, 2, 3, frozenset(), sigmoid=True, groups=4, kept_groups=3),
}


def make(spec: MoeSpec, dtype: torch.dtype = torch.float32) -> Experts:
    generator = torch.Generator().manual_seed(3)
    module = Experts(spec, HIDDEN, dtype)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.7)
    return module


def exact(module: Experts, spec: MoeSpec, row: Tensor) -> Tensor:
    """One row through the experts it is sent to, and no other."""
    parameters = {name: value.double() for name, value in module.named_parameters()}
    logits = (row @ parameters["router"]).tolist()
    total = sum(math.exp(one) for one in logits)
    scores = [1 / (1 + math.exp(-one)) if spec.sigmoid else math.exp(one) / total for one in logits]
    bias = parameters["router_bias"].tolist() if spec.router_bias else [0.0] * spec.experts
    rated = [score + extra for score, extra in zip(scores, bias, strict=True)]
    size = spec.experts // spec.groups
    groups = [range(start, start + size) for start in range(0, spec.experts, size)]
    groups.sort(key=lambda group: -sum(sorted((rated[e] for e in group), reverse=True)[:2]))
    allowed = [expert for group in groups[: spec.kept_groups] for expert in group]
    picked = sorted(allowed, key=lambda expert: -rated[expert])[: spec.per_token]
    norm = sum(scores[expert] for expert in picked) if spec.normalised else 1.0
    result = torch.zeros(HIDDEN, dtype=torch.float64)
    for expert in picked:
        own = slice(expert * spec.expert_size, (expert + 1) * spec.expert_size)
        gate = row @ parameters["gate.weight"][:, own]
        active = gate * torch.sigmoid(gate) * (row @ parameters["up.weight"][:, own])
        weight = scores[expert] / norm * spec.scaling
        result += weight * (active @ parameters["down.weight"][own])
    if spec.shared_size:
        gate = row @ parameters["shared.gate.weight"]
        active = gate * torch.sigmoid(gate) * (row @ parameters["shared.up.weight"])
        result += active @ parameters["shared.down.weight"]
    return result


@pytest.mark.parametrize("name", SPECS)
def test_experts_equal_the_loop(name: str) -> None:
    spec = SPECS[name]
    module = make(spec)
    rows = torch.randn(40, HIDDEN, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        found, weights = module(rows), module.routing(rows)
    expected = torch.stack([exact(module, spec, row.double()) for row in rows])
    torch.testing.assert_close(found.double(), expected, atol=2e-5, rtol=1e-5)
    assert (weights > 0).sum(1).tolist() == [spec.per_token] * len(rows)
    if spec.normalised:
        torch.testing.assert_close(weights.sum(1), torch.full((len(rows),), spec.scaling))


def test_routing_is_float32_in_a_half_precision_graph() -> None:
    """The same experts are chosen whatever the precision of the products."""
    full, half = make(SPECS["grouped"]), make(SPECS["grouped"], torch.float16)
    rows = torch.randn(40, HIDDEN, generator=torch.Generator().manual_seed(6))
    assert half.router.dtype == torch.float32
    with torch.no_grad():
        assert torch.equal(full.routing(rows), half.routing(rows))
        torch.testing.assert_close(full(rows), half(rows), atol=0.1, rtol=0.05)


def test_chosen_is_exact_when_scores_tie() -> None:
    found = chosen(torch.tensor([[1.0, 1.0, 1.0, 0.0], [0.0, 2.0, 1.0, 2.0]]), 2)
    assert found.sum(1).tolist() == [2, 2]
    assert found[1].tolist() == [0, 1, 0, 1]
