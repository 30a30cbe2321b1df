"""A float64 Dream decoder over explicit masks, written only for comparison with the engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..export.tiny_checkpoint import read_tensors

Array = NDArray[np.float64]


@dataclass(frozen=True)
class DenseStep:
    """Logits [N, V] and the window's keys and values [L, H, N, D]."""

    logits: Array
    keys: Array
    values: Array

    @property
    def log_probs(self) -> Array:
        """Log-probabilities [N, V]."""
        shifted = self.logits - self.logits.max(-1, keepdims=True)
        result: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return result


class DenseModel:
    """A checkpoint folder run row by row with numpy, without batching or sharing."""

    def __init__(self, folder: Path) -> None:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.layers: int = config["num_hidden_layers"]
        self.heads: int = config["num_attention_heads"]
        self.kv_heads: int = config["num_key_value_heads"]
        self.head_dim: int = config["hidden_size"] // self.heads
        self.theta: float = config["rope_theta"]
        self.eps: float = config["rms_norm_eps"]
        tensors = read_tensors(folder / "model.safetensors")
        self.weights = {name: tensor.double().numpy() for name, tensor in tensors.items()}
        self.weights.setdefault("lm_head.weight", self.weights["model.embed_tokens.weight"])

    def empty_cache(self, slots: int = 0) -> tuple[Array, Array]:
        """Keys and values [L, H, slots, D] of zeros."""
        shape = (self.layers, self.kv_heads, slots, self.head_dim)
        return np.zeros(shape), np.zeros(shape)

    def __call__(
        self,
        ids: NDArray[Any],
        positions: NDArray[Any],
        visible: NDArray[np.bool_],
        cache: tuple[Array, Array] | None = None,
    ) -> DenseStep:
        """Run rows `ids` [N] at `positions` [N]; `visible` [N, C + N] covers cache, then rows."""
        cached_keys, cached_values = cache or self.empty_cache()
        x = self.weights["model.embed_tokens.weight"][ids]
        keys, values = [], []
        for layer in range(self.layers):
            name = f"model.layers.{layer}"
            normed = self._norm(x, f"{name}.input_layernorm.weight")
            query = self._rotate(self._heads(normed, f"{name}.self_attn.q_proj"), positions)
            key = self._rotate(self._heads(normed, f"{name}.self_attn.k_proj"), positions)
            value = self._heads(normed, f"{name}.self_attn.v_proj")
            keys.append(key)
            values.append(value)
            every_key = np.concatenate([cached_keys[layer], key], 1)
            every_value = np.concatenate([cached_values[layer], value], 1)
            x = x + self._attend(query, every_key, every_value, visible) @ self._matrix(
                f"{name}.self_attn.o_proj"
            )
            normed = self._norm(x, f"{name}.post_attention_layernorm.weight")
            gate = normed @ self._matrix(f"{name}.mlp.gate_proj")
            up = normed @ self._matrix(f"{name}.mlp.up_proj")
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self._matrix(f"{name}.mlp.down_proj")
        logits = self._norm(x, "model.norm.weight") @ self._matrix("lm_head")
        return DenseStep(logits, np.stack(keys), np.stack(values))

    def _matrix(self, module: str) -> Array:
        return self.weights[f"{module}.weight"].T

    def _norm(self, x: Array, name: str) -> Array:
        scale = np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + self.eps)
        result: Array = x / scale * self.weights[name]
        return result

    def _heads(self, x: Array, module: str) -> Array:
        flat = x @ self._matrix(module) + self.weights[f"{module}.bias"]
        result: Array = flat.reshape(len(x), -1, self.head_dim).transpose(1, 0, 2)
        return result

    def _rotate(self, x: Array, positions: NDArray[Any]) -> Array:
        half = self.head_dim // 2
        angles = positions[:, None] * self.theta ** (-np.arange(half) / half)
        cos, sin = np.cos(angles), np.sin(angles)
        first, second = x[..., :half], x[..., half:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    def _attend(
        self, query: Array, keys: Array, values: Array, visible: NDArray[np.bool_]
    ) -> Array:
        """Attend row by row over the visible keys only."""
        rows = query.shape[1]
        mixed = np.zeros((rows, self.heads, self.head_dim))
        for row in range(rows):
            seen = visible[row]
            for head in range(self.heads):
                group = head // (self.heads // self.kv_heads)
                scores = keys[group][seen] @ query[head, row] / np.sqrt(self.head_dim)
                weights = np.exp(scores - scores.max())
                mixed[row, head] = weights @ values[group][seen] / weights.sum()
        return mixed.reshape(rows, -1)
