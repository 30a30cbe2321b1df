"""What a model family is: its declared traits, its config mapping and where its tensors are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..spec import DecoderSpec
from ..token_ids import IdRule
from ..tokenizer_files import TokenizerFacts
from .config_reader import ConfigReader


@dataclass(frozen=True)
class SourceTensor:
    """A checkpoint tensor; `transposed` means it is stored [out, in], canonical is [in, out].

    `rows` selects [start, stop) of the stored first axis: one part of a fused projection.
    """

    name: str
    transposed: bool
    rows: tuple[int, int] | None = None

    @property
    def parts(self) -> tuple[SourceTensor, ...]:
        """The stored tensors that make the parameter: this one."""
        return (self,)

    @property
    def axis(self) -> int:
        """The canonical axis along which parts lie: any, there is one."""
        return 0


@dataclass(frozen=True)
class JoinedTensors:
    """Checkpoint tensors of one shape, side by side along `axis` of the canonical parameter."""

    parts: tuple[SourceTensor, ...]
    axis: int


Source = SourceTensor | JoinedTensors


@dataclass(frozen=True)
class SizeKeys:
    """The keys of `config.json` that state the decoder's sizes."""

    hidden: str = "hidden_size"
    heads: str = "num_attention_heads"
    kv_heads: str = "num_key_value_heads"
    head_dim: str = "head_dim"
    layers: str = "num_hidden_layers"
    intermediate: str = "intermediate_size"
    vocabulary: str = "vocab_size"
    positions: str = "max_position_embeddings"
    tied_head: str = "tie_word_embeddings"


@dataclass(frozen=True)
class Family:
    """The models that share one decoder layout, their traits and mappings.

    `spec(family, reader, generation_config, tokenizer, candidates)` notes what is wrong with the
    config in the reader's faults; its result counts only if there is none. `tied_head` of the
    result is what the config declares. `tensor_names(spec)` covers every canonical parameter.
    `block_size` is the length where no key of `block_keys` states one; None: one of them must.
    """

    name: str
    model_types: tuple[str, ...]
    logit_shift: int
    window_attention: str
    block_keys: tuple[str, ...]
    block_size: int | None
    mask_id: IdRule
    pad_id: IdRule
    spec: Callable[[Family, ConfigReader, Mapping[str, Any], TokenizerFacts, int], DecoderSpec]
    tensor_names: Callable[[DecoderSpec], Mapping[str, Source]]
    keys: SizeKeys = field(default=SizeKeys())
