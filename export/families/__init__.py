"""The model families lopa can export, found by `model_type`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...runtime.contract import LopaError
from .dream import FAMILY as DREAM
from .family import Family, SourceTensor

__all__ = ["FAMILIES", "Family", "SourceTensor", "UnsupportedModelError", "family_for"]

FAMILIES: tuple[Family, ...] = (DREAM,)


class UnsupportedModelError(LopaError):
    """A checkpoint whose `model_type` no family covers."""


def family_for(config: Mapping[str, Any]) -> Family:
    """Return the family of a `config.json`; raises UnsupportedModelError listing the known ones."""
    model_type = config.get("model_type")
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    supported = ", ".join(sorted(name for family in FAMILIES for name in family.model_types))
    raise UnsupportedModelError(
        f"config.json: model_type is {model_type!r}, which lopa does not support; "
        f"supported: {supported}"
    )
