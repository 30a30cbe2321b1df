"""What a manifest says about the engine: its library, and what a compiled one is tied to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

HARDWARE_COMPATIBILITY = ("none", "ampere+", "same-compute-capability")


@dataclass(frozen=True)
class EngineStamp:
    """What a compiled engine is tied to; compared with the machine before it is deserialised."""

    compute_capabilities: tuple[int, ...]  # it runs on these; 89 stands for SM 8.9
    platform: str  # operating system and processor, "linux-x86_64"
    hardware_compatibility: str  # one of HARDWARE_COMPATIBILITY
    version_compatible: bool  # newer library versions may run it
    profiles: tuple[str, ...]  # instance name of each optimisation profile, by profile index
    graph_sha256: str  # of the ONNX graph it was built from, external data included
    settings: dict[str, str]  # builder settings that shaped it

    def faults(self) -> list[str]:
        """List contradictions between the fields."""
        found = [
            f"compute_capabilities holds {number}, expected numbers like 89"
            for number in self.compute_capabilities
            if number < 10
        ]
        if not self.compute_capabilities:
            found.append("compute_capabilities is empty, expected at least one")
        if self.hardware_compatibility not in HARDWARE_COMPATIBILITY:
            found.append(
                f"hardware_compatibility is {self.hardware_compatibility!r}, expected one of: "
                f"{', '.join(HARDWARE_COMPATIBILITY)}"
            )
        twice = [name for name, count in Counter(self.profiles).items() if count > 1]
        found += [f"profiles names {name} twice" for name in twice]
        return found


@dataclass(frozen=True)
class EngineInfo:
    """Which engine library a bundle needs and how its shapes are given."""

    target: str
    dynamic: bool  # True: one engine takes every shape up to the instances; False: exactly them
    versions: dict[str, str]  # libraries that made the engine
    stamp: EngineStamp | None = None  # of compiled engines
