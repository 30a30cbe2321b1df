"""The one decoder of all families, written for a static multi-branch graph.

All branches share every matrix product: the body works on N = B * W flat rows. Matrices are stored
[in, out]. In a reduced-precision graph the residual stream, norms, softmax and log-softmax stay in
float32; matrix products and caches use the model dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .experts import Experts
from .layers import Projection, rms_norm, rotate, silu
from .spec import DecoderSpec

# exp(-1e9 - max) is exactly 0 in float32 and, unlike -inf, survives every target's arithmetic.
MASKED = -1e9


class DecoderLayer(nn.Module):
    """Pre-norm attention over cache and window, then a SwiGLU MLP or routed experts."""

    def __init__(self, spec: DecoderSpec, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        info = spec.info
        self.kv_heads, self.head_dim = info.kv_heads, info.head_dim
        self.groups = info.heads // info.kv_heads
        self.eps = spec.rms_norm_eps
        hidden, query = info.hidden_size, info.heads * info.head_dim
        kv = info.kv_heads * info.head_dim
        self.attention_norm = nn.Parameter(torch.empty(hidden))
        self.query = Projection(hidden, query, spec.qkv_bias, dtype)
        self.key = Projection(hidden, kv, spec.qkv_bias, dtype)
        self.value = Projection(hidden, kv, spec.qkv_bias, dtype)
        self.query_norm = nn.Parameter(torch.empty(info.head_dim)) if spec.qk_norm else None
        self.key_norm = nn.Parameter(torch.empty(info.head_dim)) if spec.qk_norm else None
        self.output = Projection(query, hidden, spec.output_bias, dtype)
        self.mlp_norm = nn.Parameter(torch.empty(hidden))
        self.experts: Experts | None = None
        if spec.moe is not None and spec.is_sparse(layer):
            self.experts = Experts(spec.moe, hidden, dtype)
        else:
            self.gate = Projection(hidden, info.intermediate_size, spec.mlp_bias, dtype)
            self.up = Projection(hidden, info.intermediate_size, spec.mlp_bias, dtype)
            self.down = Projection(info.intermediate_size, hidden, spec.mlp_bias, dtype)
        self.dtype = dtype

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run one layer; `keys`/`values` are this layer's cache [H, C, D], `bias` [N, C + N].

        Returns the residual stream [N, d] and the window's keys and values [H, N, D].
        """
        normed = rms_norm(x, self.attention_norm, self.eps).to(self.dtype)
        query = self.query(normed).reshape(-1, self.kv_heads * self.groups, self.head_dim)
        key = self.key(normed).reshape(-1, self.kv_heads, self.head_dim)
        if self.query_norm is not None and self.key_norm is not None:
            query = rms_norm(query.float(), self.query_norm, self.eps).to(self.dtype)
            key = rms_norm(key.float(), self.key_norm, self.eps).to(self.dtype)
        value = self.value(normed).reshape(-1, self.kv_heads, self.head_dim).permute(1, 0, 2)
        key = rotate(key, cos, sin).permute(1, 0, 2)
        query = rotate(query, cos, sin) * self.head_dim**-0.5
        query = query.reshape(-1, self.kv_heads, self.groups, self.head_dim).permute(1, 2, 0, 3)
        all_keys = torch.cat([keys, key], 1).transpose(1, 2).unsqueeze(1)
        all_values = torch.cat([values, value], 1).unsqueeze(1)
        scores = torch.matmul(query, all_keys).float() + bias
        weights = torch.softmax(scores, -1).to(self.dtype)
        mixed = torch.matmul(weights, all_values).permute(2, 0, 1, 3)
        x = x + self.output(mixed.reshape(-1, self.kv_heads * self.groups * self.head_dim)).float()
        return x + self.mlp(rms_norm(x, self.mlp_norm, self.eps)), key, value

    def mlp(self, normed: Tensor) -> Tensor:
        """Run the MLP or the experts on float32 rows [N, d]."""
        if self.experts is not None:
            mixed: Tensor = self.experts(normed)
            return mixed
        normed = normed.to(self.dtype)
        down: Tensor = self.down(silu(self.gate(normed)) * self.up(normed))
        return down.float()


class StepModule(nn.Module):
    """One engine step: body over all branches, head over the asked rows, window keys and values."""

    def __init__(self, spec: DecoderSpec, dtype: torch.dtype) -> None:
        super().__init__()
        info = spec.info
        self.spec, self.dtype = spec, dtype
        self.embed = nn.Parameter(torch.empty(info.vocab_size, info.hidden_size, dtype=dtype))
        self.layers = nn.ModuleList(
            DecoderLayer(spec, layer, dtype) for layer in range(info.layers)
        )
        self.final_norm = nn.Parameter(torch.empty(info.hidden_size))
        self.head = (
            None
            if spec.tied_head
            else nn.Parameter(torch.empty(info.hidden_size, info.vocab_size, dtype=dtype))
        )
        self.head_bias = nn.Parameter(torch.empty(info.vocab_size)) if spec.head_bias else None

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        isolation_mask: Tensor,
        cache_mask: Tensor,
        cache_keys: Tensor,
        cache_values: Tensor,
        head_rows: Tensor,
        temperature: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Map contract inputs to contract outputs (shapes in `runtime/contract.py`)."""
        cos, sin = self.angles(position_ids)
        bias = attention_bias(isolation_mask, cache_mask)
        x = nn.functional.embedding(input_ids.reshape(-1), self.embed).float()
        window_keys, window_values = [], []
        for index, layer in enumerate(self.layers):
            x, key, value = layer(x, cos, sin, bias, cache_keys[index], cache_values[index])
            window_keys.append(key)
            window_values.append(value)
        logits = self.logits(torch.index_select(x, 0, head_rows), temperature)
        token_ids, log_probs, entropy = self.candidates(logits)
        return (
            token_ids,
            log_probs,
            entropy,
            torch.stack(window_keys),
            torch.stack(window_values),
        )

    def angles(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines [N, 1, R / 2] of the rotary angles, computed in float32."""
        dim = self.spec.rotary_dim or self.spec.info.head_dim
        exponents = torch.arange(0, dim, 2, dtype=torch.float64) / dim
        frequencies = (self.spec.rope_theta**-exponents).to(torch.float32)
        angles = position_ids.reshape(-1, 1, 1).float() * frequencies
        return torch.cos(angles).to(self.dtype), torch.sin(angles).to(self.dtype)

    def logits(self, x: Tensor, temperature: Tensor) -> Tensor:
        """Vocabulary head on rows [R, d]: float32 logits [R, V] divided by the temperature."""
        normed = rms_norm(x, self.final_norm, self.spec.rms_norm_eps).to(self.dtype)
        product = (
            nn.functional.linear(normed, self.embed) if self.head is None else normed @ self.head
        )
        logits = product.float() if self.head_bias is None else product.float() + self.head_bias
        return logits / temperature

    def candidates(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Top-K tokens, their log-probabilities and the entropy (nats) of logits [R, V].

        Probabilities are normalised over the full vocabulary; the mask token and ids that the
        tokenizer does not define are never candidates.
        """
        log_probs = torch.log_softmax(logits, -1)
        # A row-wise dot product: the sum of p log p without another [R, V] tensor.
        dot = torch.matmul(torch.exp(log_probs).unsqueeze(1), log_probs.unsqueeze(2))
        entropy = -dot.reshape(-1)
        best, ids = torch.topk(log_probs + self.excluded(), self.spec.info.candidates, -1)
        return ids.to(torch.int32), best, entropy

    def excluded(self) -> Tensor:
        """Row [V] that is 0 for ids that may be predicted and MASKED for those that may not."""
        info = self.spec.info
        ids = torch.arange(info.vocab_size)
        hidden = (ids >= info.tokenizer_size) | (ids == info.mask_token_id)
        return torch.where(hidden, MASKED, 0.0)


def attention_bias(isolation_mask: Tensor, cache_mask: Tensor) -> Tensor:
    """Additive float32 bias [N, C + N] from the two masks of the contract."""
    window = torch.where(isolation_mask, 0.0, MASKED)
    cache = torch.where(cache_mask, 0.0, MASKED).unsqueeze(0) + window[:, :1] * 0.0
    return torch.cat([cache, window], 1)
