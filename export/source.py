"""The one entry to a source model: checkpoint, tokenizer and adapter, opened and cross-checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..runtime.manifest import Source
from .adapter import Adapter, open_adapter
from .checkpoint import (
    CONFIG_FILE,
    Checkpoint,
    CheckpointError,
    collect,
    fingerprint,
    open_checkpoint,
    read_json,
)
from .families import family_for
from .families.config_reader import ConfigReader
from .spec import DecoderSpec
from .tokenizer_files import TokenizerFacts, read_tokenizer
from .weights import Weights, base_model, check_tensors, untie_head


@dataclass(frozen=True)
class ModelSource:
    """A checked source model, ready to be exported."""

    spec: DecoderSpec
    weights: Weights
    tokenizer: TokenizerFacts
    checkpoint: Checkpoint
    adapter: Adapter | None

    @cached_property
    def source(self) -> Source:
        """The manifest record; hashes every tensor file on first use."""
        adapter = self.adapter
        return Source(
            checkpoint=self.checkpoint.folder.resolve().name,
            fingerprint=fingerprint(self.checkpoint),
            adapter=adapter.folder.resolve().name if adapter else None,
            adapter_fingerprint=adapter.fingerprint if adapter else None,
        )


def open_source(
    checkpoint_folder: Path, adapter_folder: Path | None = None, candidates: int = 8
) -> ModelSource:
    """Open a checkpoint with an optional LoRA adapter; `candidates` are kept per head row.

    Raises CheckpointError with every fault of config, tokenizer and tensors,
    UnsupportedModelError for an unknown model_type, AdapterError for the adapter's faults.
    """
    folder, faults = Path(checkpoint_folder), list[str]()
    checkpoint = collect(faults, lambda: open_checkpoint(folder))
    if not folder.is_dir():
        raise CheckpointError(folder, faults)
    config = (
        checkpoint.config if checkpoint else collect([], lambda: read_json(folder / CONFIG_FILE))
    )
    family = family_for(config, folder) if config is not None else None
    tokenizer = collect(faults, lambda: read_tokenizer(folder))
    spec = None
    if config is not None and family is not None and tokenizer is not None:
        generation = checkpoint.generation_config if checkpoint else {}
        reader = ConfigReader(config, [])
        spec = family.spec(family, reader, generation, tokenizer, candidates)
        if checkpoint is not None and not reader.faults:
            faults += check_tensors(checkpoint, family, spec)
        faults += reader.faults
    if faults or checkpoint is None or family is None or tokenizer is None or spec is None:
        raise CheckpointError(folder, faults)
    adapter = None
    if adapter_folder is not None:
        base = base_model(family, spec)
        adapter = open_adapter(Path(adapter_folder), base)
        spec = untie_head(spec, base, adapter)
    return ModelSource(
        spec, Weights(checkpoint, adapter, family, spec), tokenizer, checkpoint, adapter
    )
