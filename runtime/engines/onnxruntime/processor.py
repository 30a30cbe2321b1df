"""What the processor does with 8-bit products."""

from __future__ import annotations

from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
VNNI = frozenset({"avx512_vnni", "avx_vnni"})  # they add in 32 bits


def integers_saturate(cpuinfo: str) -> bool:
    """Whether products of unsigned and signed 8-bit integers are added in 16 bits, which overflow.

    `cpuinfo` is the text of /proc/cpuinfo. x86 without VNNI does so; what is not known to be
    anything else is taken for that.
    """
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    flags = next((set(value.split()) for key, _, value in lines if key.strip() == "flags"), None)
    if flags is None:  # other architectures list "Features"
        return "Features" not in cpuinfo
    return not flags & VNNI


def processor_saturates() -> bool:
    """`integers_saturate` of this machine."""
    try:
        return integers_saturate(CPUINFO.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return True
