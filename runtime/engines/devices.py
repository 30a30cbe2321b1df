"""The GPUs of this machine, or why there are none."""

from __future__ import annotations

from dataclasses import dataclass

from ..contract import LopaError
from .cuda import Cuda, Gpu


@dataclass(frozen=True)
class Devices:
    """What CUDA finds; `cuda` is the versions of runtime and driver, or why it cannot be used."""

    cuda: str
    gpus: tuple[Gpu, ...]


def find_devices() -> Devices:
    """Ask the CUDA runtime."""
    try:
        cuda = Cuda()
        runtime, driver = cuda.versions()
        if driver == "0.0":
            return Devices("no NVIDIA driver is installed", ())
        return Devices(f"runtime {runtime}, driver serves {driver}", cuda.gpus())
    except LopaError as error:
        return Devices(str(error), ())
