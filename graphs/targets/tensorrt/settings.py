"""Builder settings of the TensorRT targets, and which of them a target has no use for."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from ....runtime.contract import LopaError
from ....runtime.engine_info import HARDWARE_COMPATIBILITY
from ..flags import flag
from ..protocol import Offer
from ..windows import STATIC_SHAPES
from .traits import BuilderTraits

PROFILING_VERBOSITY = ("layer-names-only", "detailed", "none")
OPTIMIZATION_LEVELS = range(6)
LARGEST_POOL = (1 << 63) - 1  # bytes, as the builder counts them
_UNITS = {"": 1 << 20, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def workspace(text: str) -> int:
    """Bytes of `workspace:N`: MiB, or with the unit B, K, M or G; raises LopaError."""
    match = re.fullmatch(r"workspace:(\d+)([BKMG]?)(?:iB)?", text)
    if match is None:
        raise LopaError(f"expected workspace:N in MiB (or with B, K, M, G), got {text}")
    size = int(match[1]) * _UNITS[match[2]]
    if not 0 < size <= LARGEST_POOL:
        raise LopaError(f"{text} is {size} bytes, expected 1 to 2^63 - 1")
    return size


@dataclass(frozen=True)
class TensorRtSettings:
    """What a user may set; None or empty leaves the library's default."""

    compute_capabilities: tuple[int, ...] = field(
        default=(),
        metadata=flag(
            "--sm",
            metavar="N,...",
            help="tensorrt-rtx: GPU generations the engine serves, 89 for SM 8.9 "
            "(default 80,86,89,120); 75 and 121 are possible",
        ),
    )
    workspace: int | None = field(
        default=None,
        metadata=flag(
            "--mem-pool-size",
            "--memPoolSize",
            metavar="workspace:N",
            parse=workspace,
            help="scratch memory a kernel may use, MiB, or with B, K, M or G (default: all there "
            "is)",
        ),
    )
    optimization_level: int | None = field(
        default=None,
        metadata=flag(
            "--builder-optimization-level",
            "--builderOptimizationLevel",
            metavar="N",
            choices=OPTIMIZATION_LEVELS,
            help="0 builds fastest, 5 searches longest for fast kernels (default 3)",
        ),
    )
    profiling_verbosity: str | None = field(
        default=None,
        metadata=flag(
            "--profiling-verbosity",
            "--profilingVerbosity",
            choices=PROFILING_VERBOSITY,
            help="what the engine remembers of its layers (default layer-names-only)",
        ),
    )
    layer_info: Path | None = field(
        default=None,
        metadata=flag(
            "--export-layer-info",
            "--exportLayerInfo",
            metavar="FILE",
            help="write the engine inspector's JSON (detailed verbosity; needs a GPU on both "
            "targets)",
        ),
    )
    hardware_compatibility: str = field(
        default="none",
        metadata=flag(
            "--hardware-compatibility-level",
            "--hardwareCompatibilityLevel",
            choices=HARDWARE_COMPATIBILITY,
            help="tensorrt: other GPUs the engine serves (default none)",
        ),
    )
    version_compatible: bool = field(
        default=False,
        metadata=flag(
            "--version-compatible",
            "--versionCompatible",
            help="tensorrt: newer versions of the library may run the engine",
        ),
    )
    timing_cache: Path | None = field(
        default=None,
        metadata=flag(
            "--timing-cache-file",
            "--timingCacheFile",
            metavar="FILE",
            help="tensorrt: kernel timings to start from, written back after the build",
        ),
    )
    strict_timing_cache: bool = field(
        default=False,
        metadata=flag(
            "--error-on-timing-cache-miss",
            "--errorOnTimingCacheMiss",
            help="tensorrt: fail where the timing cache does not serve, instead of timing again",
        ),
    )

    def refused(self, traits: BuilderTraits) -> list[str]:
        """List the settings that a target has no use for, by flag, each with the reason."""
        found = []
        if self.compute_capabilities and not traits.capability_list:
            found.append("--sm (the engine is built for the GPU of this machine)")
        elif traits.capability_list:
            unknown = sorted(set(self.compute_capabilities) - set(traits.compute_capabilities))
            known = ", ".join(map(str, traits.compute_capabilities))
            found += [f"--sm {number} (it builds for {known})" for number in unknown]
        if self.hardware_compatibility != "none" and traits.capability_list:
            found.append("--hardwareCompatibilityLevel (name the GPUs with --sm)")
        if self.version_compatible and not traits.version_compatible:
            found.append("--versionCompatible (its engines need the exact library version)")
        if self.timing_cache is not None and not traits.timing_cache:
            found.append("--timingCacheFile (no kernel is timed while it builds)")
        if self.strict_timing_cache and not traits.timing_cache:
            found.append("--errorOnTimingCacheMiss (it has no timing cache)")
        elif self.strict_timing_cache and self.timing_cache is None:
            found.append("--errorOnTimingCacheMiss without --timingCacheFile")
        return found

    @property
    def verbosity(self) -> str | None:
        """Profiling verbosity in force: layer information needs the detailed one."""
        wanted = "detailed" if self.layer_info is not None else None
        return self.profiling_verbosity or wanted

    def recorded(self) -> dict[str, str]:
        """Settings that shape the engine, for its stamp."""
        chosen = {
            "workspace_bytes": self.workspace,
            "optimization_level": self.optimization_level,
            "profiling_verbosity": self.verbosity,
        }
        return {name: str(value) for name, value in chosen.items() if value is not None}


OFFER = Offer(
    "TensorRT",
    ("fp32", "fp16", "bf16"),
    STATIC_SHAPES,
    TensorRtSettings,
    "Each has its trtexec spelling and a kebab-case one. TensorRT 11 builds strongly typed "
    "networks only: --best, calibration caches and layer precisions are gone, and --fp16, "
    "--bf16 and --int8 say in which precision the graph is exported.",
)
