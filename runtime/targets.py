"""The targets of bundles, a line each: what builds them, runs them and brings their library."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from .contract import LopaError


@dataclass(frozen=True)
class Target:
    """One target.

    `folder` is a package of `graphs.targets` (with `settings.py`, `build.py` and `probe.py`, see
    `graphs/targets/protocol.py`) and of `runtime.engines` (with `open.py`, see
    `runtime/engines/__init__.py`). Without its leading dot it is one package elsewhere with all
    four.
    """

    name: str
    folder: str
    library: str  # import name
    extra: str  # of lopa, brings the library
    providers: tuple[str, ...] = ()  # what --provider chooses from; empty: there is no choice
    compiles: bool = False  # kernels are compiled where it runs and kept in --runtime-cache


TARGETS = {
    row.name: row
    for row in (
        Target("onnxruntime", ".onnxruntime", "onnxruntime", "cpu", providers=("cpu", "cuda")),
        Target("tensorrt", ".tensorrt", "tensorrt", "tensorrt"),
        Target("tensorrt-rtx", ".tensorrt", "tensorrt_rtx", "tensorrt-rtx", compiles=True),
    )
}


def find_target(name: str) -> Target:
    """Return a target; raises LopaError listing all."""
    if name not in TARGETS:
        raise LopaError(f"target is {name!r}, expected one of: {', '.join(TARGETS)}")
    return TARGETS[name]


def providers() -> tuple[str, ...]:
    """What --provider takes, the first being the default."""
    return tuple(dict.fromkeys(name for row in TARGETS.values() for name in row.providers))


def load_part(target: Target, part: str, package: str | None) -> Any:
    """Import one file of a target's folder, which lies in `package`."""
    return importlib.import_module(f"{target.folder}.{part}", package)
