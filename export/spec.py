"""What a family tells the exporter: the decoder's shape and its canonical parameters."""

from __future__ import annotations

from dataclasses import dataclass

from ..runtime.manifest import ModelInfo

QKV = ("query", "key", "value")
MLP = ("gate", "up", "down")


@dataclass(frozen=True)
class MoeSpec:
    """Routed experts in place of the MLP: router, experts and the layers that have them.

    A row goes to its `per_token` best experts by score (softmax over all experts, or sigmoid) plus
    the router's bias, chosen inside the `kept_groups` best of `groups` groups; a group is as good
    as its two best experts together. Scores without bias weigh the outputs, divided by their sum
    if `normalised`, times `scaling`. `shared_size` is the width of an expert that sees every row.
    """

    experts: int
    per_token: int
    expert_size: int
    dense_layers: frozenset[int]
    sigmoid: bool = False
    normalised: bool = True
    scaling: float = 1.0
    groups: int = 1
    kept_groups: int = 1
    router_bias: bool = False
    shared_size: int = 0


@dataclass(frozen=True)
class DecoderSpec:
    """A pre-norm decoder with RoPE, grouped key/value heads and SwiGLU MLPs or experts.

    `qk_norm`: queries and keys are normed per head before RoPE. `rotary_dim`: the leading part of
    a head that RoPE turns, None for all of it.
    """

    info: ModelInfo
    rms_norm_eps: float
    rope_theta: float
    qkv_bias: bool
    tied_head: bool
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    qk_norm: bool = False
    rotary_dim: int | None = None
    moe: MoeSpec | None = None

    def has_bias(self, linear: str) -> bool:
        """Tell whether the linear layer of that canonical name has a bias."""
        if linear in QKV:
            return self.qkv_bias
        return self.output_bias if linear == "output" else self.mlp_bias

    def is_sparse(self, layer: int) -> bool:
        """Tell whether a layer has routed experts instead of a dense MLP."""
        return self.moe is not None and layer not in self.moe.dense_layers


def parameter_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Return canonical parameter names and shapes; matrices are stored [in, out], embed [V, d].

    A tied head has no entry of its own: it is the transposed `embed`.
    """
    info = spec.info
    hidden, wide = info.hidden_size, info.intermediate_size
    query, kv = info.heads * info.head_dim, info.kv_heads * info.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embed": (info.vocab_size, hidden)}

    def linear(name: str, inputs: int, outputs: int, bias: bool) -> None:
        shapes[f"{name}.weight"] = (inputs, outputs)
        if bias:
            shapes[f"{name}.bias"] = (outputs,)

    for layer in range(info.layers):
        prefix = f"layers.{layer}"
        shapes[f"{prefix}.attention_norm"] = (hidden,)
        for name, width in (("query", query), ("key", kv), ("value", kv)):
            linear(f"{prefix}.{name}", hidden, width, spec.qkv_bias)
        if spec.qk_norm:
            shapes[f"{prefix}.query_norm"] = shapes[f"{prefix}.key_norm"] = (info.head_dim,)
        linear(f"{prefix}.output", query, hidden, spec.output_bias)
        shapes[f"{prefix}.mlp_norm"] = (hidden,)
        if spec.moe is not None and spec.is_sparse(layer):
            shapes |= _expert_shapes(f"{prefix}.experts", hidden, spec.moe)
        else:
            linear(f"{prefix}.gate", hidden, wide, spec.mlp_bias)
            linear(f"{prefix}.up", hidden, wide, spec.mlp_bias)
            linear(f"{prefix}.down", wide, hidden, spec.mlp_bias)
    shapes["final_norm"] = (hidden,)
    if not spec.tied_head:
        shapes["head"] = (hidden, info.vocab_size)
    if spec.head_bias:
        shapes["head_bias"] = (info.vocab_size,)
    return shapes


def _expert_shapes(prefix: str, hidden: int, moe: MoeSpec) -> dict[str, tuple[int, ...]]:
    """Shapes of router, experts (side by side in one wide MLP) and shared expert of one layer."""
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}.router": (hidden, moe.experts)}
    if moe.router_bias:
        shapes[f"{prefix}.router_bias"] = (moe.experts,)
    sizes = {prefix: moe.experts * moe.expert_size, f"{prefix}.shared": moe.shared_size}
    for name, wide in sizes.items():
        if wide:
            shapes[f"{name}.gate.weight"] = shapes[f"{name}.up.weight"] = (hidden, wide)
            shapes[f"{name}.down.weight"] = (wide, hidden)
    return shapes
