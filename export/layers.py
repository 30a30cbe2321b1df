"""Building blocks of the decoder: projections, norms, rotary positions and the activation."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Projection(nn.Module):
    """y = x @ weight (+ bias), weight [in, out]."""

    def __init__(self, inputs: int, outputs: int, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(outputs, dtype=dtype)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Project rows [N, in] to [N, out]."""
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis of a float32 tensor."""
    return x / torch.sqrt(torch.mean(torch.pow(x, 2), -1, keepdim=True) + eps) * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to [N, H, D]; cos and sin are [N, 1, R / 2] (half-split layout).

    The first R of D numbers are turned, the rest pass.
    """
    size = 2 * cos.shape[-1]
    first, second = torch.chunk(x if size == x.shape[-1] else x[..., :size], 2, -1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return torch.cat(turned if size == x.shape[-1] else [*turned, x[..., size:]], -1)


def silu(x: Tensor) -> Tensor:
    """The activation of every gate."""
    return x * torch.sigmoid(x)
