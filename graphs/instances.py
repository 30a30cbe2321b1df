"""Which static shapes a bundle offers, and how a symbolic graph is fixed to one of them."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from ..runtime.contract import Instance, LopaError


def plan_instances(
    lookahead: int, windows: Sequence[int], prefills: Sequence[int], contexts: Sequence[int]
) -> tuple[Instance, ...]:
    """Return every combination asked for, cheapest first.

    Each window is offered for the anchor alone and for anchor plus `lookahead` branches; prefill
    windows (prompt encoding, whole-sequence decoding) for the anchor alone. Raises LopaError for
    values that make no instance.
    """
    faults = []
    if lookahead < 0:
        faults.append(f"lookahead is {lookahead}, expected 0 or more")
    for name, values in (("window", windows), ("prefill", prefills), ("context", contexts)):
        faults += [f"{name} {value} is not positive" for value in values if value < 1]
        if not values and name != "prefill":
            faults.append(f"no {name} given")
    longest = max(contexts, default=0)
    for name, values in (("window", windows), ("prefill", prefills)):
        faults += [
            f"{name} {value} is larger than the largest context {longest}"
            for value in values
            if longest and value > longest
        ]
    if faults:
        raise LopaError("; ".join(faults))
    shapes = {(branches, window) for window in windows for branches in (1, lookahead + 1)} | {
        (1, window) for window in prefills
    }
    return tuple(
        sorted(
            (
                Instance(branches, window, context, branches * window)
                for branches, window in shapes
                for context in set(contexts)
            ),
            key=lambda item: (item.window_rows, item.context),
        )
    )


def fix_dimensions(model: onnx.ModelProto, instance: Instance) -> onnx.ModelProto:
    """Return a copy of `model` whose inputs and outputs have the static shape of `instance`.

    External weights stay references; nothing else changes, as the graph holds no Shape node.
    """
    sizes = {
        "branches": instance.branches,
        "window": instance.window,
        "branches*window": instance.window_rows,
        "context": instance.context,
        "rows": instance.rows,
    }
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in (*fixed.graph.input, *fixed.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = sizes[dim.dim_param]
    return fixed
