"""The ONNX Runtime library: how it is imported, and which of its providers run here."""

from __future__ import annotations

from typing import Any

from ...contract import LopaError

PROVIDERS = ("cpu", "cuda")
FATAL = 4  # the least it may log where its errors come as exceptions


def load_library() -> Any:
    """Import onnxruntime or say which extra brings it."""
    try:
        import onnxruntime
    except ImportError:
        raise LopaError(
            "onnxruntime is not installed; install lopa[cpu] (or lopa[cuda] for NVIDIA GPUs)"
        ) from None
    return onnxruntime


def check_provider(library: Any, provider: str) -> None:
    """Raise LopaError unless the library offers `provider`."""
    if provider not in PROVIDERS:
        raise LopaError(f"provider is {provider!r}, expected one of: {', '.join(PROVIDERS)}")
    available = library.get_available_providers()
    offered = ", ".join(available)
    if provider == "cuda" and "CUDAExecutionProvider" not in available:
        raise LopaError(
            f"provider 'cuda' needs onnxruntime-gpu and an NVIDIA GPU; this onnxruntime "
            f"{library.__version__} offers {offered}: install lopa[cuda] or use --provider cpu"
        )
