"""What a manifest says about a model that `lopa calibrate` quantised."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class QuantizedLayer:
    """How one matrix product, or the embedding table, is stored and computed."""

    precision: str  # "model" | "fp16" | "int8-weight" | "int8" | "int4-weight"
    method: str | None  # that gave the range of its activations
    smooth: float | None  # exponent of the scale migration
    reason: str  # why it is kept higher than its rule says; empty if it is not


@dataclass(frozen=True)
class Quantization:
    """What `lopa calibrate` made of a model; hashes are sha256 (hex)."""

    recipe: str
    rules: tuple[str, ...]  # first match wins
    layers: dict[str, QuantizedLayer]
    agreement: float  # share of the likeliest tokens kept on the recorded steps
    states: int  # recorded steps
    prompts_sha256: str
    model_sha256: str  # of the model that was calibrated
    cache: str | None = None  # dtype of caches and window outputs where it is not the model's

    def faults(self) -> list[str]:
        """List contradictions between the fields."""
        if self.cache in (None, "int8"):
            return []
        return [f"cache is {self.cache!r}, expected null or 'int8'"]

    @property
    def counts(self) -> dict[str, int]:
        """Number of products of each precision."""
        return dict(Counter(layer.precision for layer in self.layers.values()))


@dataclass(frozen=True)
class FastGraph:
    """A quantised graph of a bundle's model, with the same inputs and outputs."""

    file: str
    quantization: Quantization
