"""Routed experts as static matrix products: every expert runs, routing weights pick the outputs.

The experts of a layer lie side by side in one wide MLP: gate and up [d, E * I], down [E * I, d].
A row's activations are multiplied by its routing weights, zero for every expert it is not sent to,
so the down product sums over experts by itself.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .layers import Projection, silu
from .spec import MoeSpec

EXCLUDED = -1e9  # below every score, in every target's arithmetic
GROUP_BEST = 2  # experts whose scores rate a group


class Experts(nn.Module):
    """Router, experts and shared expert of one layer; routing is computed in float32."""

    def __init__(self, moe: MoeSpec, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.moe, self.dtype = moe, dtype
        wide = moe.experts * moe.expert_size
        self.router = nn.Parameter(torch.empty(hidden, moe.experts))
        self.router_bias = nn.Parameter(torch.empty(moe.experts)) if moe.router_bias else None
        self.gate = Projection(hidden, wide, False, dtype)
        self.up = Projection(hidden, wide, False, dtype)
        self.down = Projection(wide, hidden, False, dtype)
        self.shared: nn.ModuleDict | None = None
        if moe.shared_size:
            self.shared = nn.ModuleDict(
                {
                    "gate": Projection(hidden, moe.shared_size, False, dtype),
                    "up": Projection(hidden, moe.shared_size, False, dtype),
                    "down": Projection(moe.shared_size, hidden, False, dtype),
                }
            )

    def forward(self, x: Tensor) -> Tensor:
        """Run float32 rows [N, d]; returns float32 rows [N, d]."""
        moe, weights = self.moe, self.routing(x).to(self.dtype).unsqueeze(-1)
        x = x.to(self.dtype)
        active = silu(self.gate(x)) * self.up(x)
        active = active.reshape(-1, moe.experts, moe.expert_size) * weights
        active = active.reshape(-1, moe.experts * moe.expert_size)
        mixed: Tensor = self.down(active).float()
        if self.shared is None:
            return mixed
        shared = silu(self.shared["gate"](x)) * self.shared["up"](x)
        total: Tensor = mixed + self.shared["down"](shared).float()
        return total

    def routing(self, x: Tensor) -> Tensor:
        """Weights [N, E] of the experts of each row, zero for those it is not sent to."""
        moe = self.moe
        logits = x @ self.router
        scores = torch.sigmoid(logits) if moe.sigmoid else torch.softmax(logits, -1)
        rated = scores if self.router_bias is None else scores + self.router_bias
        if moe.kept_groups < moe.groups:
            size = moe.experts // moe.groups
            grouped = rated.reshape(-1, moe.groups, size)
            best = torch.topk(grouped, min(GROUP_BEST, size), -1).values.sum(-1)
            kept = chosen(best, moe.kept_groups).unsqueeze(-1)
            rated = torch.where(kept > 0, grouped, EXCLUDED).reshape(-1, moe.experts)
        weights = scores * chosen(rated, moe.per_token)
        if moe.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights if moe.scaling == 1 else weights * moe.scaling


def chosen(scores: Tensor, count: int) -> Tensor:
    """Float32 [N, E]: one for exactly the `count` best of each row, zero for the others."""
    ids = torch.topk(scores, count, -1).indices.unsqueeze(-1)
    return (ids == torch.arange(scores.shape[-1])).float().sum(1)
