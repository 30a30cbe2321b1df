"""What an engine says of its tensors, held against what the manifest says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .contract import ContractError, TensorSpec

Dims = tuple[int | None, ...]  # None: any size


@dataclass(frozen=True)
class ReportedTensor:
    """One tensor as the engine library reports it; its dtype under NumPy's name."""

    name: str
    dtype: str
    dims: Dims


def check_tensors(
    title: str,
    reported: Sequence[ReportedTensor],
    expected: Mapping[str, Sequence[TensorSpec]],
) -> None:
    """Raise ContractError listing everything in which the engine differs from the manifest.

    `expected` maps a name of each shape that the engine shall take (an instance) to its inputs and
    outputs. A reported dimension of any size fits every shape; a fixed one must be equal.
    """
    faults: dict[str, None] = {}  # a fault that shapes have in common is said once
    for shape, specs in expected.items():
        faults |= dict.fromkeys(tensor_faults(shape, reported, specs))
    if faults:
        raise ContractError(
            f"{title} is not the engine of this manifest: {'; '.join(faults)}; build it again"
        )


def tensor_faults(
    shape: str, reported: Sequence[ReportedTensor], expected: Sequence[TensorSpec]
) -> list[str]:
    """List the differences at one shape; `shape` names it where a dimension differs."""
    found = {tensor.name: tensor for tensor in reported}
    wanted = {spec.name for spec in expected}
    faults = [f"it has no {spec.name}" for spec in expected if spec.name not in found]
    faults += [f"it has {name}, unknown to the contract" for name in found if name not in wanted]
    for spec in expected:
        tensor = found.get(spec.name)
        if tensor is None:
            continue
        if tensor.dtype != spec.dtype:
            faults.append(f"{spec.name} is {tensor.dtype}, the manifest says {spec.dtype}")
        if len(tensor.dims) != len(spec.shape):
            faults.append(
                f"{spec.name} has {len(tensor.dims)} dimensions, the contract {len(spec.shape)}"
            )
            continue
        if any(dim not in (None, size) for dim, size in zip(tensor.dims, spec.shape, strict=True)):
            faults.append(
                f"{spec.name} is {_dims_text(tensor.dims)}, the manifest says "
                f"{_dims_text(_as_far_as_fixed(tensor.dims, spec.shape))}"
                + (f" at {shape}" if None not in tensor.dims else "")
            )
    return faults


def _as_far_as_fixed(dims: Dims, shape: Sequence[int]) -> Dims:
    """The shape without the dimensions in which the engine takes any size."""
    return tuple(None if dim is None else size for dim, size in zip(dims, shape, strict=True))


def _dims_text(dims: Dims) -> str:
    return f"[{', '.join('any' if dim is None else str(dim) for dim in dims)}]"
