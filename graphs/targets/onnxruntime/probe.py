"""Whether ONNX Runtime, and its provider, is here."""

from __future__ import annotations

from ....runtime.contract import LopaError
from ....runtime.engines.devices import Devices
from ....runtime.engines.onnxruntime.library import load_library
from ..protocol import Findings


def probe(target: str, provider: str, devices: Devices) -> Findings:
    """Ask the library for its providers; a build needs none but the CPU's."""
    try:
        library = load_library()
    except (LopaError, OSError) as error:
        return Findings(None, str(error), str(error))
    run = None
    if provider == "cuda" and "CUDAExecutionProvider" not in library.get_available_providers():
        run = "this onnxruntime has no CUDA provider: install lopa[cuda] instead of lopa[cpu]"
    return Findings(str(library.__version__), None, run)
