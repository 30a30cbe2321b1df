"""The tensors of an ONNX Runtime session, checked against the manifest when it is opened."""

from __future__ import annotations

from typing import Any

from ...contract import Instance, TensorSpec
from ...engine_check import ReportedTensor, check_tensors
from ...manifest import BundleManifest

_NUMPY_NAMES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(bfloat16)": "bfloat16",
    "tensor(double)": "float64",
}


def check_step(session: Any, path: object, manifest: BundleManifest) -> None:
    """Raise ContractError unless a step graph takes and gives what the manifest says."""
    expected = {}
    for instance in manifest.instances:
        inputs, outputs = manifest.tensor_specs(instance)
        expected[instance.name] = (*inputs, *outputs)
    check_tensors(str(path), reported_tensors(session), expected)


def check_commit(session: Any, path: object, manifest: BundleManifest) -> None:
    """Raise ContractError unless the commit graph copies rows of this cache."""
    expected = {instance.name: _commit_specs(manifest, instance) for instance in manifest.instances}
    check_tensors(str(path), reported_tensors(session), expected)


def reported_tensors(session: Any) -> list[ReportedTensor]:
    """Inputs and outputs as the session reports them; symbolic dimensions are of any size."""
    return [
        ReportedTensor(
            node.name,
            _NUMPY_NAMES.get(node.type, node.type.removeprefix("tensor(").removesuffix(")")),
            tuple(dim if isinstance(dim, int) else None for dim in node.shape),
        )
        for node in (*session.get_inputs(), *session.get_outputs())
    ]


def _commit_specs(manifest: BundleManifest, instance: Instance) -> tuple[TensorSpec, ...]:
    info, dtype, slots = manifest.model, manifest.model_dtype, instance.context
    cache = (info.layers, info.kv_heads, slots, info.head_dim)
    window = (info.layers, info.kv_heads, instance.window_rows, info.head_dim)
    return (
        TensorSpec("cache", dtype, cache),
        TensorSpec("window", dtype, window),
        TensorSpec("source", "int64", (slots,)),
        TensorSpec("committed", dtype, cache),
    )
