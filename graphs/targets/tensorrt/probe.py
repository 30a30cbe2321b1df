"""Whether a TensorRT library is here, and a GPU that it builds on and runs on."""

from __future__ import annotations

from ....runtime.contract import LopaError
from ....runtime.engines.devices import Devices
from ....runtime.engines.tensorrt.library import PRODUCTS, load_library
from ..protocol import Findings
from .traits import TRAITS


def probe(target: str, provider: str, devices: Devices) -> Findings:
    """Import the library and hold its kernels against the GPUs."""
    traits = TRAITS[target]
    try:
        library = load_library(target)
    except LopaError as error:
        return Findings(None, str(error), str(error))
    run = None if devices.gpus else f"no GPU: {devices.cuda}"
    build = run if traits.needs_gpu else None
    served = set(traits.compute_capabilities)  # empty: whatever GPU is there
    if run is None and served and not served & {gpu.compute_capability for gpu in devices.gpus}:
        others = ", ".join(name for name, other in TRAITS.items() if not other.compute_capabilities)
        run = f"{PRODUCTS[target].title} has no kernels for this GPU; use --target {others}"
    return Findings(str(library.__version__), build, run)
