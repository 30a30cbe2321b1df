"""What this machine has for building and running bundles: libraries, GPUs, targets."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import platform
from dataclasses import dataclass

from .. import __version__
from ..graphs.targets import prober_of
from ..runtime.engines.cuda import Gpu
from ..runtime.engines.devices import Devices, find_devices
from ..runtime.targets import TARGETS

# Python packages take long to import and are there if they are installed.
PACKAGES = {"torch": "export", "onnx": "export and build", "polygraphy": "compare"}


@dataclass(frozen=True)
class Library:
    """An importable library; `version` is None where it is absent."""

    name: str
    version: str | None
    purpose: str


@dataclass(frozen=True)
class Target:
    """What can be done with a target here; None: yes, else why not."""

    name: str
    build: str | None
    run: str | None


@dataclass(frozen=True)
class Machine:
    """Everything `lopa doctor` asks."""

    lopa: str
    python: str
    platform: str
    libraries: tuple[Library, ...]
    cuda: str  # versions of runtime and driver, or why CUDA cannot be used
    gpus: tuple[Gpu, ...]
    targets: tuple[Target, ...]


def this_machine() -> Machine:
    """Look at the installed libraries and the GPUs."""
    devices = find_devices()
    packages = tuple(Library(name, _package(name), use) for name, use in PACKAGES.items())
    engines, targets = _targets(devices)
    return Machine(
        lopa=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        libraries=(*engines, _cuda_bindings(), *packages),
        cuda=devices.cuda,
        gpus=devices.gpus,
        targets=targets,
    )


def _targets(devices: Devices) -> tuple[tuple[Library, ...], tuple[Target, ...]]:
    """What each target's folder finds here: its library, and whether it builds and runs."""
    no_export = "install lopa[export]" if _package("onnx") is None else None
    libraries, found = [], []
    for name, row in TARGETS.items():
        probe = prober_of(name).probe
        for provider in row.providers or ("",):
            findings = probe(name, provider, devices)
            title = f"{name}, {provider}" if provider else name
            found.append(Target(title, no_export or findings.build, findings.run))
        purpose = f"builds and runs {name} bundles"
        libraries.append(Library(row.library, findings.version, purpose))
    return tuple(libraries), tuple(found)


def _package(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cuda_bindings() -> Library:
    """An engine's library can be installed and not load, so this one is imported."""
    name, version = "cuda.bindings", None
    with contextlib.suppress(ImportError, OSError):
        version = str(importlib.import_module(name).__version__)
    return Library(name, version, "CUDA calls of TensorRT targets")
