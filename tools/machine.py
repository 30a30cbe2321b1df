"""What this machine has for building and running bundles: libraries, GPUs, targets."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
from dataclasses import dataclass

from .. import __version__
from ..graphs.targets.tensorrt.traits import TRAITS
from ..runtime.contract import LopaError
from ..runtime.engines.cuda import Cuda, Gpu
from ..runtime.engines.tensorrt.library import PRODUCTS, load_library

# Import name -> what it is for.
LIBRARIES = {
    "onnxruntime": "runs onnxruntime bundles",
    "tensorrt": "builds and runs tensorrt bundles",
    "tensorrt_rtx": "builds and runs tensorrt-rtx bundles",
    "cuda.bindings": "CUDA calls of both TensorRT targets",
    "torch": "export",
    "onnx": "export and build",
    "polygraphy": "compare",
}
# Python packages take long to import and are there if they are installed; an engine library can be
# installed and not load, so those are imported.
_PACKAGES = ("torch", "onnx", "polygraphy")
_OTHER_NAMES = {"tensorrt_rtx": PRODUCTS["tensorrt-rtx"].modules}


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
    libraries = tuple(Library(name, _version(name), purpose) for name, purpose in LIBRARIES.items())
    cuda, gpus = _cuda()
    return Machine(
        lopa=__version__,
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",
        libraries=libraries,
        cuda=cuda,
        gpus=gpus,
        targets=_targets(libraries, cuda, gpus),
    )


def _targets(
    libraries: tuple[Library, ...], cuda: str, gpus: tuple[Gpu, ...]
) -> tuple[Target, ...]:
    present = {library.name for library in libraries if library.version is not None}
    no_runtime = None if "onnxruntime" in present else "install lopa[cpu] or lopa[cuda]"
    no_gpu = None if gpus else f"no GPU: {cuda}"
    no_export = None if "onnx" in present else "install lopa[export]"
    found = [
        Target("onnxruntime, cpu", no_export or no_runtime, no_runtime),
        Target("onnxruntime, cuda", no_export or no_runtime, no_runtime or _no_cuda_provider()),
    ]
    for name, product in PRODUCTS.items():
        missing = None
        try:
            load_library(name)
        except LopaError as error:
            missing = str(error)
        run = missing or no_gpu
        if name == "tensorrt-rtx":
            served = set(TRAITS[name].compute_capabilities)
            if run is None and not served & {gpu.compute_capability for gpu in gpus}:
                run = f"{product.title} has no kernels for this GPU; use --target tensorrt"
            build = no_export or missing  # it compiles without a GPU
        else:
            build = no_export or missing or no_gpu
        found.append(Target(name, build, run))
    return tuple(found)


def _no_cuda_provider() -> str | None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        return None
    return "this onnxruntime has no CUDA provider: install lopa[cuda] instead of lopa[cpu]"


def _version(name: str) -> str | None:
    if name in _PACKAGES:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None
    for module in _OTHER_NAMES.get(name, (name,)):
        try:
            return str(importlib.import_module(module).__version__)
        except (ImportError, OSError):
            continue
    return None


def _cuda() -> tuple[str, tuple[Gpu, ...]]:
    try:
        cuda = Cuda()
        runtime, driver = cuda.versions()
        if driver == "0.0":
            return "no NVIDIA driver is installed", ()
        return f"runtime {runtime}, driver serves {driver}", cuda.gpus()
    except LopaError as error:
        return str(error), ()
