"""How much memory a bundle needs, told from its manifest alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain

from .contract import CACHE_NAMES, ELEMENT_BYTES, MODEL_DTYPES, WINDOW_NAMES, Instance
from .manifest import BundleManifest, ModelInfo


@dataclass(frozen=True)
class InstanceMemory:
    """Bytes that a step of one instance needs besides the weights and the cache."""

    instance: Instance
    branch_window: int  # keys and values of one branch's window, held until the winner is known
    activations: int  # estimate of what is alive at the widest point of a layer or of the head
    host: int  # inputs and head outputs, which cross to the host and back per step

    @property
    def windows(self) -> int:
        """Keys and values of all branches."""
        return self.instance.branches * self.branch_window


@dataclass(frozen=True)
class DecodeMemory:
    """Bytes of one decode, which every further one at the same time needs again.

    Of every tensor there is one array, as large as the largest instance asks for.
    """

    cache: int  # keys and values of the largest context
    windows: int  # keys and values of all branches of the widest step
    host: int  # inputs and head outputs

    @property
    def total(self) -> int:
        """All of it."""
        return self.cache + self.windows + self.host


@dataclass(frozen=True)
class BundleMemory:
    """Bytes a bundle needs, by use; the engine allocates for its largest instance."""

    weights: int
    cache: int  # at the largest context
    instances: tuple[InstanceMemory, ...]

    @property
    def total(self) -> int:
        """Weights, cache, and the largest of everything else."""
        return (
            self.weights
            + self.cache
            + max(item.windows for item in self.instances)
            + max(item.activations for item in self.instances)
            + max(item.host for item in self.instances)
        )


def slot_bytes(model: ModelInfo, dtype: str) -> int:
    """Keys and values of one token in all layers."""
    return 2 * model.layers * model.kv_heads * model.head_dim * ELEMENT_BYTES[dtype]


def bundle_memory(manifest: BundleManifest) -> BundleMemory:
    """Add up what the manifest says; activations are an estimate, the rest is exact.

    Engines may hold more: ONNX Runtime packs weights for the CPU, libraries keep work space.
    """
    model = manifest.model
    slot = slot_bytes(model, manifest.model_dtype)
    element = ELEMENT_BYTES[MODEL_DTYPES[manifest.graph.precision]]
    weights = sum(
        record.bytes
        for name, record in manifest.files.items()
        if name.endswith((".onnx", ".data", ".engine"))
    )
    return BundleMemory(
        weights=weights,
        cache=slot * max(instance.context for instance in manifest.instances),
        instances=tuple(
            InstanceMemory(
                instance=item,
                branch_window=slot * item.window,
                activations=_activations(item, model, element),
                host=_host(item, model.candidates),
            )
            for item in manifest.instances
        ),
    )


def decode_memory(manifest: BundleManifest) -> DecodeMemory:
    """Add up the tensors of one decode; exact where instances share their arrays.

    The CPU runs steps in their own shapes, whose head rows are rounded up to a multiple of 8.
    """
    largest: dict[str, int] = {}
    for instance in manifest.instances:
        for spec in chain(*manifest.tensor_specs(instance)):
            largest[spec.name] = max(largest.get(spec.name, 0), spec.bytes)
    cache = sum(largest.pop(name) for name in CACHE_NAMES)
    windows = sum(largest.pop(name) for name in WINDOW_NAMES)
    return DecodeMemory(cache, windows, host=sum(largest.values()))


def smaller(manifest: BundleManifest) -> BundleManifest:
    """Keep the instances of the smallest window that holds two blocks, one filling, one added.

    Every branch count and context stays. What it costs: longer prompts are refused, and fewer
    blocks are open at once, so a step may fill fewer tokens.
    """
    windows = sorted({instance.window for instance in manifest.instances})
    enough = [window for window in windows if window >= 2 * manifest.model.block_size]
    kept = enough[0] if enough else windows[-1]
    return replace(
        manifest,
        instances=tuple(item for item in manifest.instances if item.window == kept),
    )


def _activations(instance: Instance, model: ModelInfo, element: int) -> int:
    """The larger of attention scores, MLP and head logits, beside the residual stream."""
    rows, keys = instance.window_rows, instance.window_rows + instance.context
    scores = model.heads * rows * keys * 4  # softmax runs in float32
    mlp = 3 * rows * model.intermediate_size * element
    logits = 2 * instance.rows * model.vocab_size * 4  # and what log-sum-exp makes of them
    return 2 * rows * model.hidden_size * element + max(scores, mlp, logits)


def _host(instance: Instance, candidates: int) -> int:
    rows = instance.window_rows
    inputs = 8 * rows + rows * rows + instance.context + 4 * instance.rows + 4
    return inputs + instance.rows * (8 * candidates + 4)
