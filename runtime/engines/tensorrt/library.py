"""The TensorRT libraries: how each is imported, what it calls itself, what it logs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from ...contract import LopaError


@dataclass(frozen=True)
class Product:
    """What differs between the libraries behind one programming interface."""

    title: str
    modules: tuple[str, ...]  # import names, first choice first
    own_graphs: bool  # captures CUDA graphs inside its own calls and keeps compiled kernels
    checks_engines: bool  # says before deserialising whether an engine runs here


PRODUCTS = {
    "tensorrt": Product("TensorRT", ("tensorrt",), own_graphs=False, checks_engines=False),
    "tensorrt-rtx": Product(
        "TensorRT for RTX",
        ("tensorrt_rtx", "tensorrt_rtx_bindings"),
        own_graphs=True,
        checks_engines=True,
    ),
}


def load_library(target: str) -> Any:
    """Import the library of a target or say which extra brings it."""
    product = PRODUCTS[target]
    install = f"install it with: pip install 'lopa[{target}]'"
    for name in product.modules:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise LopaError(
                    f"{product.title} lacks the module {error.name}; {install}"
                ) from None
        except (ImportError, OSError) as error:  # a shared library of it is missing
            raise LopaError(
                f"{product.title} is installed but cannot be loaded ({error}); {install}"
            ) from error
    raise LopaError(f"{product.title} is not installed; {install}")


def make_log(library: Any) -> Any:
    """Return a logger for `library` that keeps errors; `take()` returns and forgets them.

    The library reports every fault through its logger alone: calls return None or False.
    """

    class Log(library.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            library.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, msg: str) -> None:
            if severity in (library.ILogger.INTERNAL_ERROR, library.ILogger.ERROR):
                self.errors.append(" ".join(msg.split()))

        def take(self) -> str:
            found, self.errors = "; ".join(self.errors), []
            return found or "the library gave no reason"

    return Log()
