"""Checkpoint names of routed experts, stored one module per expert."""

from __future__ import annotations

from ..spec import MoeSpec
from .family import JoinedTensors, Source, SourceTensor
from .qwen import MLP, dense_mlp


def expert_names(
    canonical: str,
    module: str,
    moe: MoeSpec,
    *,
    bias: str = "",
    shared: str = "",
) -> dict[str, Source]:
    """Return router and experts of the MoE `module`; `bias` and `shared` name its extra parts."""
    names: dict[str, Source] = {f"{canonical}.router": SourceTensor(f"{module}.gate.weight", True)}
    if moe.router_bias:
        names[f"{canonical}.router_bias"] = SourceTensor(f"{module}.{bias}", False)
    for name, part in MLP.items():
        experts = (f"{module}.experts.{index}.{part}.weight" for index in range(moe.experts))
        names[f"{canonical}.{name}.weight"] = JoinedTensors(
            tuple(SourceTensor(expert, True) for expert in experts),
            axis=0 if name == "down" else 1,
        )
    if moe.shared_size:
        names |= dense_mlp(f"{canonical}.shared", f"{module}.{shared}")
    return names
