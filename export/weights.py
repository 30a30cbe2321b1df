"""Canonical weights, read one at a time from a checkpoint with an adapter merged in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from .adapter import Adapter, BaseModel, LoraUpdate
from .checkpoint import Checkpoint, CheckpointError, TensorRecord, listed, read_tensor
from .families.family import Family, Source, SourceTensor
from .spec import DecoderSpec, parameter_shapes

# Buffers old exporters stored; they follow from the config.
HARMLESS_SUFFIXES = ("rotary_emb.inv_freq",)


@dataclass(frozen=True)
class WeightPart:
    """One stored tensor of a canonical weight: rows of it, maybe transposed, maybe updated."""

    record: TensorRecord
    transposed: bool
    rows: tuple[int, int] | None
    update: LoraUpdate | None

    def read_into(self, out: torch.Tensor) -> None:
        """Fill `out`, in canonical orientation and its own dtype; LoRA is merged in float32."""
        tensor = read_tensor(self.record, self.rows)
        if self.transposed:
            tensor = tensor.t()
        if self.update is not None:
            # (B A)^T = A^T B^T: canonical matrices are the transpose of the stored ones.
            factor_a = read_tensor(self.update.factor_a).float().t()
            factor_b = read_tensor(self.update.factor_b, self.rows).float().t()
            tensor = torch.addmm(tensor.float(), factor_a, factor_b, alpha=self.update.scale)
        out.copy_(tensor)  # converts as it transposes
        if not all(torch.isfinite(bound) for bound in torch.aminmax(out)):
            raise CheckpointError(
                self.record.file.parent,
                [
                    f"{self.record.name} has NaN or infinite values as {out.dtype}; use a higher "
                    "precision if it overflows, else download the checkpoint again"
                ],
            )


@dataclass(frozen=True)
class WeightSource:
    """How one canonical weight is made: parts of one shape, side by side along `axis`."""

    parts: tuple[WeightPart, ...]
    axis: int = 0


class Weights(Mapping[str, WeightSource]):
    """Canonical parameter name -> source; `read` makes the tensor. Never holds a tensor itself."""

    def __init__(
        self, checkpoint: Checkpoint, adapter: Adapter | None, family: Family, spec: DecoderSpec
    ) -> None:
        """Plan every parameter of a `spec` that check_tensors and untie_head have settled."""
        updates = adapter.updates if adapter else {}
        replacements = adapter.replacements if adapter else {}
        names = family.tensor_names(spec)
        embed = _only(names["embed"]).name
        self.shapes = parameter_shapes(spec)

        def part(source: SourceTensor) -> WeightPart:
            stored = replacements.get(source.name) or checkpoint.tensors.get(source.name)
            if stored is None:  # a head untied by the adapter starts from the embedding
                stored = checkpoint.tensors[embed]
            update = updates.get(source.name)
            return WeightPart(stored, source.transposed, source.rows, update)

        self._sources = {
            name: WeightSource(tuple(map(part, names[name].parts)), names[name].axis)
            for name in self.shapes
        }

    def __getitem__(self, name: str) -> WeightSource:
        return self._sources[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return one weight, contiguous, in canonical orientation.

        Raises CheckpointError if a value is not finite, as stored or in `dtype`.
        """
        source = self._sources[name]
        made = torch.empty(self.shapes[name], dtype=dtype)
        spaces = made.chunk(len(source.parts), source.axis)
        for part, out in zip(source.parts, spaces, strict=True):
            part.read_into(out)
        return made


def base_model(family: Family, spec: DecoderSpec) -> BaseModel:
    """Describe the stored tensors a `spec` expects, the head included even when tied."""
    untied = replace(spec, tied_head=False)
    names = family.tensor_names(untied)
    shapes: dict[str, tuple[int, ...]] = {}
    for canonical, shape in parameter_shapes(untied).items():
        source, inner = names[canonical], list(shape)
        inner[source.axis] //= len(source.parts)
        for part in source.parts:
            stored = tuple(inner[::-1] if part.transposed else inner)
            if part.rows is not None:  # the fused tensor ends where its last part does
                end = max(part.rows[1], shapes.get(part.name, (0,))[0])
                stored = (end, *stored[1:])
            shapes[part.name] = stored
    return BaseModel(
        shapes=shapes,
        embed=_only(names["embed"]).name,
        head=_only(names["head"]).name,
        tied=spec.tied_head,
    )


def _only(source: Source) -> SourceTensor:
    (part,) = source.parts
    return part


def check_tensors(checkpoint: Checkpoint, family: Family, spec: DecoderSpec) -> list[str]:
    """Compare names and shapes of a checkpoint with what `spec` expects; returns all faults."""
    base = base_model(family, spec)
    tensors = checkpoint.tensors
    faults = []
    missing = base.shapes.keys() - tensors.keys()
    if base.head in missing:
        missing = missing - {base.head}
        if not base.tied:
            faults.append(
                f"{base.head} is missing but config.json does not tie it to the embedding; set "
                f"{family.keys.tied_head} to true if it is tied, else download the checkpoint again"
            )
    if missing:
        faults.append(f"missing tensors: {listed(missing)}; config.json promises them")
    unused = {
        name for name in tensors.keys() - base.shapes.keys() if not name.endswith(HARMLESS_SUFFIXES)
    }
    if unused:
        faults.append(
            f"tensors that model_type {spec.info.model_type!r} has no use for: {listed(unused)}; "
            "check config.json"
        )
    misshapen = [
        f"{name} is {list(tensors[name].shape)}, expected {list(shape)}"
        for name, shape in base.shapes.items()
        if name in tensors and tensors[name].shape != shape
    ]
    if misshapen:
        faults.append(f"shapes that contradict config.json: {listed(misshapen)}")
    elif (
        base.tied
        and base.head in tensors
        and base.embed in tensors
        and not _same(checkpoint.read(base.head), checkpoint.read(base.embed))
    ):
        faults.append(
            f"{family.keys.tied_head} is true but {base.head} differs from {base.embed}; set it to "
            "false if the head is its own"
        )
    return faults


def untie_head(spec: DecoderSpec, base: BaseModel, adapter: Adapter) -> DecoderSpec:
    """Give the head its own weight when the adapter changes only one of a tied pair, or each."""
    changed = adapter.updates.keys() | adapter.replacements.keys()
    return replace(spec, tied_head=spec.tied_head and not changed & {base.embed, base.head})


def _same(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first, second)
