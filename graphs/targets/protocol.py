"""What the folder of a target offers: `settings.py`, `build.py` and `probe.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...runtime.contract import Instance
from ...runtime.engine_info import EngineInfo
from ...runtime.manifest import ModelManifest
from .listener import BuildListener
from .windows import WindowDefaults

if TYPE_CHECKING:
    from ...runtime.engines.devices import Devices


@dataclass(frozen=True)
class Offer:
    """What can be asked of a target: `OFFER` of its `settings.py`, which imports no library."""

    title: str  # of the library
    precisions: tuple[str, ...]
    windows: WindowDefaults
    settings: type[Any] | None = None  # frozen dataclass of builder settings (see `flags.py`)
    about: str = ""  # above its flags in the help
    fast_graph: bool = False  # its bundles can hold a second, quantised graph


class Builder(Protocol):
    """Functions of `build.py`; `settings` are an instance of the offer's, None without."""

    def check_build(self, target: str, precision: str, settings: Any) -> object:
        """Raise LopaError for what keeps this machine or these settings from building at all."""

    def build_engine(
        self,
        target: str,
        model_folder: Path,
        manifest: ModelManifest,
        instances: tuple[Instance, ...],
        stage: Path,
        settings: Any,
        listener: BuildListener,
    ) -> tuple[EngineInfo, list[str]]:
        """Write the engine into `stage`; returns its record and the file names, engine first."""


class FastBuilder(Builder, Protocol):
    """`build.py` of a target whose offer has `fast_graph`."""

    def build_fast(
        self, model_folder: Path, manifest: ModelManifest, instances: tuple[Instance, ...], to: Path
    ) -> list[str]:
        """Write what the second graph needs beside the first; returns file names, graph first."""


@dataclass(frozen=True)
class Findings:
    """What a machine can do with a target; `build` and `run` are None, or why not."""

    version: str | None  # of the library, None where it is absent
    build: str | None
    run: str | None


class Prober(Protocol):
    """The function of `probe.py`."""

    def probe(self, target: str, provider: str, devices: Devices) -> Findings:
        """Look whether the library is here and what it can do; never raises LopaError.

        `provider` is empty where the target has none.
        """
