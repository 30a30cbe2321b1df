"""Build targets, a folder each (`protocol.py`); a builder is imported only when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from ...runtime.contract import Instance, LopaError
from ...runtime.engine_info import EngineInfo
from ...runtime.manifest import ModelManifest
from ...runtime.targets import TARGETS, find_target, load_part
from .listener import BuildListener
from .protocol import Builder, FastBuilder, Offer, Prober


def offer_of(target: str) -> Offer:
    """What can be asked of a target; raises LopaError for none of the table."""
    return cast(Offer, load_part(find_target(target), "settings", __package__).OFFER)


def offers() -> dict[str, Offer]:
    """The offer of every target."""
    return {name: offer_of(name) for name in TARGETS}


def check_target(target: str, precision: str, settings: Any) -> None:
    """Raise LopaError if `target` cannot be built here, whatever the model: asked before an export.

    `settings` are of the offer's class, None for its defaults.
    """
    offer = offer_of(target)
    if precision not in offer.precisions:
        able = {other.title for other in offers().values() if precision in other.precisions}
        raise LopaError(
            f"{target} runs {' and '.join(offer.precisions)} graphs, not {precision}; "
            + " or ".join(["choose one of them", *(f"a {title} target" for title in sorted(able))])
        )
    _builder(target).check_build(target, precision, _settings(offer, settings))


def build_engine(
    target: str,
    model_folder: Path,
    manifest: ModelManifest,
    instances: tuple[Instance, ...],
    stage: Path,
    settings: Any,
    listener: BuildListener,
) -> tuple[EngineInfo, list[str]]:
    """Build the engine of `target` into `stage`; returns its record and files, engine first."""
    check_target(target, manifest.graph.precision, settings)
    filled = _settings(offer_of(target), settings)
    return _builder(target).build_engine(
        target, model_folder, manifest, instances, stage, filled, listener
    )


def check_fast_target(target: str) -> None:
    """Raise LopaError unless bundles for `target` can hold a fast graph."""
    if not offer_of(target).fast_graph:
        able = ", ".join(name for name, offer in offers().items() if offer.fast_graph)
        raise LopaError(
            f"a bundle for {target} holds one precision, a fast model is for {able}; build a "
            "bundle of each"
        )


def build_fast(
    target: str,
    model_folder: Path,
    manifest: ModelManifest,
    instances: tuple[Instance, ...],
    to: Path,
) -> list[str]:
    """Build the second graph of a bundle into the folder `to`; returns its files, graph first."""
    builder = cast(FastBuilder, _builder(target))
    return builder.build_fast(model_folder, manifest, instances, to)


def prober_of(target: str) -> Prober:
    """What tells whether a machine can build and run a target."""
    return cast(Prober, load_part(find_target(target), "probe", __package__))


def _builder(target: str) -> Builder:
    return cast(Builder, load_part(find_target(target), "build", __package__))


def _settings(offer: Offer, given: Any) -> Any:
    return offer.settings() if given is None and offer.settings is not None else given
