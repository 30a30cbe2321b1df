"""The engine contract: tensor names, dtypes and shape rules that every saved engine obeys.

Version 1. B branches x W window tokens = N rows; C cache slots; R head rows; L layers; H kv heads;
D head size; K kept candidates. Exporter, targets, runtimes and the C++ host share these names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONTRACT_VERSION = 1

INPUT_NAMES = (
    "input_ids",
    "position_ids",
    "isolation_mask",
    "cache_mask",
    "cache_keys",
    "cache_values",
    "head_rows",
    "temperature",
)
OUTPUT_NAMES = ("token_ids", "log_probs", "entropy", "window_keys", "window_values")
CACHE_WINDOWS = {"cache_keys": "window_keys", "cache_values": "window_values"}  # cache: its source
CACHE_NAMES = tuple(CACHE_WINDOWS)
WINDOW_NAMES = tuple(CACHE_WINDOWS.values())
# What crosses between host and device in every step.
HOST_INPUT_NAMES = tuple(name for name in INPUT_NAMES if name not in CACHE_NAMES)
HEAD_OUTPUT_NAMES = tuple(name for name in OUTPUT_NAMES if name not in WINDOW_NAMES)

# Precision of a graph -> NumPy name of the "model dtype" that caches and window outputs carry.
# NumPy has no bfloat16: such tensors never leave the device.
MODEL_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "int32": 4, "bool": 1}


class LopaError(Exception):
    """A fault the user can mend: the message says what was found, what was expected, what to do."""


class ContractError(LopaError):
    """An engine, graph or feed that does not obey the contract."""


@dataclass(frozen=True, order=True)
class Instance:
    """One static shape of the engine: B branches, W window tokens, C cache slots, R head rows."""

    branches: int
    window: int
    context: int
    rows: int

    @property
    def window_rows(self) -> int:
        """N = B * W, the rows every matrix product of the body sees."""
        return self.branches * self.window

    @property
    def name(self) -> str:
        """Short name used in reports, for example ``b5-w64-c256-r320``."""
        return f"b{self.branches}-w{self.window}-c{self.context}-r{self.rows}"

    def holds(self, other: Instance) -> bool:
        """Tell whether a step of shape `other` fits into this instance after padding."""
        return (
            self.branches >= other.branches
            and self.window >= other.window
            and self.context >= other.context
            and self.rows >= other.rows
        )

    def faults(self) -> list[str]:
        """List what is wrong with the numbers of this instance."""
        found = [
            f"{field} is {value}, expected a positive integer"
            for field, value in vars(self).items()
            if value < 1
        ]
        if not found and self.rows > self.window_rows:
            found.append(f"rows is {self.rows}, more than branches * window = {self.window_rows}")
        return found


@dataclass(frozen=True)
class TensorSpec:
    """Name, NumPy dtype name and shape of one engine tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size in memory."""
        return math.prod(self.shape) * ELEMENT_BYTES[self.dtype]


def input_specs(
    instance: Instance, layers: int, kv_heads: int, head_dim: int, model_dtype: str
) -> tuple[TensorSpec, ...]:
    """Return the inputs of `instance` in contract order."""
    rows, context = instance.window_rows, instance.context
    cache = (layers, kv_heads, context, head_dim)
    return (
        TensorSpec("input_ids", "int32", (instance.branches, instance.window)),
        TensorSpec("position_ids", "int32", (instance.branches, instance.window)),
        TensorSpec("isolation_mask", "bool", (rows, rows)),
        TensorSpec("cache_mask", "bool", (context,)),
        TensorSpec("cache_keys", model_dtype, cache),
        TensorSpec("cache_values", model_dtype, cache),
        TensorSpec("head_rows", "int32", (instance.rows,)),
        TensorSpec("temperature", "float32", (1,)),
    )


def output_specs(
    instance: Instance,
    layers: int,
    kv_heads: int,
    head_dim: int,
    candidates: int,
    model_dtype: str,
) -> tuple[TensorSpec, ...]:
    """Return the outputs of `instance` in contract order."""
    window = (layers, kv_heads, instance.window_rows, head_dim)
    return (
        TensorSpec("token_ids", "int32", (instance.rows, candidates)),
        TensorSpec("log_probs", "float32", (instance.rows, candidates)),
        TensorSpec("entropy", "float32", (instance.rows,)),
        TensorSpec("window_keys", model_dtype, window),
        TensorSpec("window_values", model_dtype, window),
    )


def named(specs: Sequence[TensorSpec], names: Sequence[str]) -> tuple[TensorSpec, ...]:
    """Return those of `specs` that are called so."""
    return tuple(spec for spec in specs if spec.name in names)


def smallest_fit(instances: Sequence[Instance], step: Instance) -> Instance | None:
    """Return the cheapest instance that holds `step` (fewest rows, then slots), or None."""
    fitting = [instance for instance in instances if instance.holds(step)]
    return min(
        fitting,
        key=lambda found: (found.window_rows, found.context, found.rows),
        default=None,
    )


def misfit(instances: Sequence[Instance], steps: Sequence[Instance]) -> str | None:
    """Say which of `steps` no instance holds and how to build a bundle that does."""
    for step in steps:
        if smallest_fit(instances, step) is None:
            flags = (
                f"--prefill {step.window}"
                if step.branches == 1
                else f"--lookahead {step.branches - 1} --window {step.window}"
            )
            known = ", ".join(instance.name for instance in instances)
            return (
                f"needs a step of {step.branches} branch{'es' * (step.branches > 1)} by "
                f"{step.window} window tokens over {step.context} cache slots, the bundle has "
                f"{known}; "
                f"build with {flags} --context {step.context}"
            )
    return None
