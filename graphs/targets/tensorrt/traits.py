"""What differs between TensorRT 10, TensorRT 11 and TensorRT for RTX when an engine is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BuilderTraits:
    """What the builder of one product offers."""

    needs_gpu: bool  # it times kernels on the GPU that will run them
    capability_list: bool  # one engine for several GPU generations, named beforehand
    compute_capabilities: tuple[int, ...]  # it can build for these; empty: whatever GPU is there
    default_capabilities: tuple[int, ...]
    version_compatible: bool
    timing_cache: bool


TRAITS = {
    "tensorrt": BuilderTraits(
        needs_gpu=True,
        capability_list=False,
        compute_capabilities=(),
        default_capabilities=(),
        version_compatible=True,
        timing_cache=True,
    ),
    "tensorrt-rtx": BuilderTraits(
        needs_gpu=False,
        capability_list=True,
        compute_capabilities=(75, 80, 86, 89, 120, 121),
        default_capabilities=(80, 86, 89, 120),
        version_compatible=False,
        timing_cache=False,
    ),
}


def network_flags(library: Any) -> int:
    """Flags for `create_network`: types come from the graph, which TensorRT 10 must be told.

    TensorRT 11 knows no other way and TensorRT for RTX, whose version numbers start again at 1,
    never did; the flag is deprecated there.
    """
    if major_version(library) != 10:
        return 0
    return 1 << int(library.NetworkDefinitionCreationFlag.STRONGLY_TYPED)


def major_version(library: Any) -> int:
    """First number of the library's version."""
    return int(str(library.__version__).partition(".")[0])
