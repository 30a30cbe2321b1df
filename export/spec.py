"""What a family tells the exporter: the decoder's shape and its canonical parameters."""

from __future__ import annotations

from dataclasses import dataclass

from ..runtime.manifest import ModelInfo


@dataclass(frozen=True)
class DecoderSpec:
    """A pre-norm decoder with RoPE, grouped key/value heads and a SwiGLU MLP."""

    info: ModelInfo
    rms_norm_eps: float
    rope_theta: float
    qkv_bias: bool
    tied_head: bool


def parameter_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Return canonical parameter names and shapes; matrices are stored [in, out], embed [V, d].

    A tied head has no entry of its own: it is the transposed `embed`.
    """
    info = spec.info
    hidden, wide = info.hidden_size, info.intermediate_size
    query, kv = info.heads * info.head_dim, info.kv_heads * info.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embed": (info.vocab_size, hidden)}
    for layer in range(info.layers):
        prefix = f"layers.{layer}"
        shapes[f"{prefix}.attention_norm"] = (hidden,)
        for name, width in (("query", query), ("key", kv), ("value", kv)):
            shapes[f"{prefix}.{name}.weight"] = (hidden, width)
            if spec.qkv_bias:
                shapes[f"{prefix}.{name}.bias"] = (width,)
        shapes[f"{prefix}.output.weight"] = (query, hidden)
        shapes[f"{prefix}.mlp_norm"] = (hidden,)
        shapes[f"{prefix}.gate.weight"] = (hidden, wide)
        shapes[f"{prefix}.up.weight"] = (hidden, wide)
        shapes[f"{prefix}.down.weight"] = (wide, hidden)
    shapes["final_norm"] = (hidden,)
    if not spec.tied_head:
        shapes["head"] = (hidden, info.vocab_size)
    return shapes
