"""The model families lopa can export, found by `model_type`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...runtime.contract import LopaError
from ..checkpoint import CONFIG_FILE
from .dream import FAMILY as DREAM
from .family import Family, JoinedTensors, Source, SourceTensor
from .fast_dllm_v2 import FAMILY as FAST_DLLM_V2
from .llada import FAMILY as LLADA
from .llada2_moe import FAMILY as LLADA2_MOE
from .sdar import FAMILY as SDAR
from .sdar_moe import FAMILY as SDAR_MOE

__all__ = [
    "FAMILIES",
    "Family",
    "JoinedTensors",
    "Source",
    "SourceTensor",
    "UnsupportedModelError",
    "family_for",
]

FAMILIES: tuple[Family, ...] = (DREAM, FAST_DLLM_V2, LLADA, LLADA2_MOE, SDAR, SDAR_MOE)


class UnsupportedModelError(LopaError):
    """A checkpoint whose `model_type` no family covers."""


def family_for(config: Mapping[str, Any], folder: Path) -> Family:
    """Return the family of the `config.json` of `folder`.

    Raises UnsupportedModelError naming the folder and the known types.
    """
    model_type = config.get("model_type")
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    supported = ", ".join(sorted(name for family in FAMILIES for name in family.model_types))
    raise UnsupportedModelError(
        f"{folder / CONFIG_FILE}: unsupported model_type {model_type!r}; supported: {supported}"
    )
