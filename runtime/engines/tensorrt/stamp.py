"""Does this machine run a compiled engine? Asked before the library is handed a single byte."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass

from ...contract import LopaError
from ...engine_info import EngineInfo, EngineStamp
from ..cuda import Gpu
from .library import PRODUCTS


class StampError(LopaError):
    """An engine that was built for another library version, GPU or platform."""


@dataclass(frozen=True)
class Machine:
    """What an engine meets here: library version, platform, GPU."""

    version: str
    platform: str
    gpu: Gpu


def this_platform() -> str:
    """Operating system and processor as stamps spell them, for example ``linux-x86_64``."""
    processor = platform.machine().lower()
    return f"{platform.system().lower()}-{'x86_64' if processor == 'amd64' else processor}"


def check_stamp(engine: EngineInfo, machine: Machine) -> EngineStamp:
    """Return the stamp; raises StampError naming both sides of every mismatch."""
    if engine.stamp is None:
        raise StampError("the manifest of this bundle has no engine stamp; build it again")
    faults = _faults(engine, engine.stamp, machine)
    if faults:
        raise StampError(
            f"this bundle cannot run here: {'; '.join(faults)}; build it again for this machine"
        )
    return engine.stamp


def _faults(engine: EngineInfo, stamp: EngineStamp, machine: Machine) -> list[str]:
    product, faults = PRODUCTS[engine.target], []
    built = engine.versions.get(engine.target)
    if built is None:
        faults.append("its manifest does not say which version of the library built it")
    elif not _runs_on_version(stamp, built, machine.version):
        newer = " or newer" if stamp.version_compatible else ""
        faults.append(
            f"it was built with {product.title} {built} and needs that version{newer}, "
            f"installed is {machine.version}"
        )
    if not _runs_on_gpu(stamp, machine.gpu.compute_capability):
        faults.append(
            f"it was built for SM {_capabilities(stamp)}, "
            f"the GPU here ({machine.gpu.name}) has SM {dotted(machine.gpu.compute_capability)}"
        )
    if machine.platform not in _platforms(engine.target, stamp.platform):
        faults.append(f"it was built for {stamp.platform}, this machine is {machine.platform}")
    return faults


def dotted(compute_capability: int) -> str:
    """89 as ``8.9``."""
    return f"{compute_capability // 10}.{compute_capability % 10}"


def _runs_on_version(stamp: EngineStamp, built: str, installed: str) -> bool:
    if built == installed:
        return True
    return stamp.version_compatible and _numbers(installed) >= _numbers(built)


def _runs_on_gpu(stamp: EngineStamp, found: int) -> bool:
    if stamp.hardware_compatibility == "ampere+":
        return found >= 80
    return found in stamp.compute_capabilities


def _platforms(target: str, built: str) -> tuple[str, ...]:
    """Engines of TensorRT for RTX run on Linux and Windows alike."""
    if target != "tensorrt-rtx":
        return (built,)
    processor = built.partition("-")[2]
    return (f"linux-{processor}", f"windows-{processor}")


def _capabilities(stamp: EngineStamp) -> str:
    if stamp.hardware_compatibility == "ampere+":
        return "8.0 and later"
    return ", ".join(dotted(number) for number in stamp.compute_capabilities)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))
