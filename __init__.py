"""Compile diffusion language models into saved engines and decode them with LoPA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .runtime.session import Session, open_bundle

__version__ = "0.1.0"
__all__ = ["Session", "__version__", "open_bundle"]


def __getattr__(name: str) -> Any:
    """Load the runtime on first use, so that ``import lopa`` costs nothing."""
    if name in ("Session", "open_bundle"):
        from .runtime import session

        return getattr(session, name)
    raise AttributeError(f"module 'lopa' has no attribute {name!r}")
