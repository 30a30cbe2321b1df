"""Builder settings of the TensorRT targets, and which of them a target has no use for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .traits import BuilderTraits

PROFILING_VERBOSITY = ("layer-names-only", "detailed", "none")
OPTIMIZATION_LEVELS = range(6)


@dataclass(frozen=True)
class TensorRtSettings:
    """What a user may set; None or empty leaves the library's default."""

    workspace: int | None = None  # bytes of scratch memory a kernel may use
    optimization_level: int | None = None  # 0 builds fastest, 5 searches longest
    profiling_verbosity: str | None = None
    compute_capabilities: tuple[int, ...] = ()  # 89 stands for SM 8.9
    hardware_compatibility: str = "none"
    version_compatible: bool = False
    timing_cache: Path | None = None  # read if it is there, written after the build
    strict_timing_cache: bool = False  # a cache that does not serve is an error
    layer_info: Path | None = None  # file for the engine inspector's JSON

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
