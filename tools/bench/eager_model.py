"""A Dream-architecture model in plain eager torch, the way published modelling code runs it."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ...export.source import open_source
from ...runtime.contract import LopaError

Cache = list[tuple[Tensor, Tensor]]  # per layer keys and values [1, H, n, D]


class EagerModel:
    """A Dream-architecture model in eager torch, float32."""

    def __init__(self, checkpoint: Path) -> None:
        source = open_source(checkpoint)
        self.spec, self.info = source.spec, source.spec.info
        check_family(self.info.family)
        read = source.weights.read
        self.weights = {
            name: (read(name).T.contiguous() if _is_matrix(name) else read(name))
            for name in source.weights
        }
        dim = self.info.head_dim
        self.frequencies = 1.0 / self.spec.rope_theta ** (torch.arange(0, dim, 2).float() / dim)

    def forward(self, ids: Tensor, start: int, cache: Cache, keep: int) -> tuple[Tensor, Cache]:
        """Run ids [1, n] at positions from `start`; returns logits [n, V] and the grown cache.

        The first `keep` positions are appended to the cache.
        """
        info, weights = self.info, self.weights
        positions = torch.arange(start, start + ids.shape[1]).float()
        angles = torch.outer(positions, self.frequencies)
        angles = torch.cat([angles, angles], -1)
        cos, sin = angles.cos(), angles.sin()
        x = F.embedding(ids, weights["embed"])
        grown: Cache = []
        for layer in range(info.layers):
            prefix = f"layers.{layer}"
            h = self._norm(x, weights[f"{prefix}.attention_norm"])
            query = self._heads(h, f"{prefix}.query", info.heads)
            key = self._heads(h, f"{prefix}.key", info.kv_heads)
            value = self._heads(h, f"{prefix}.value", info.kv_heads)
            query, key = _rotary(query, cos, sin), _rotary(key, cos, sin)
            if cache:
                key = torch.cat([cache[layer][0], key], 2)
                value = torch.cat([cache[layer][1], value], 2)
            attended = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
            attended = attended.transpose(1, 2).reshape(1, ids.shape[1], -1)
            x = x + F.linear(attended, weights[f"{prefix}.output.weight"])
            h = self._norm(x, weights[f"{prefix}.mlp_norm"])
            gate = F.silu(F.linear(h, weights[f"{prefix}.gate.weight"]))
            up = F.linear(h, weights[f"{prefix}.up.weight"])
            x = x + F.linear(gate * up, weights[f"{prefix}.down.weight"])
            length = start + keep
            grown.append((key[:, :, :length], value[:, :, :length]))
        hidden = self._norm(x, weights["final_norm"])
        head = weights["embed"] if self.spec.tied_head else weights["head"]
        return F.linear(hidden, head)[0], grown

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.spec.rms_norm_eps) * weight

    def _heads(self, x: Tensor, name: str, heads: int) -> Tensor:
        bias = self.weights.get(f"{name}.bias")
        y = F.linear(x, self.weights[f"{name}.weight"], bias)
        return y.view(1, x.shape[1], heads, self.info.head_dim).transpose(1, 2)


def check_family(family: str) -> None:
    """Raise LopaError for a family whose layers this model does not have."""
    if family != "dream":
        raise LopaError(f"the eager baseline of lopa bench covers the dream family, not {family}")


def _is_matrix(name: str) -> bool:
    return name == "head" or (name.endswith(".weight") and "norm" not in name)


def _rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cos + turned * sin
