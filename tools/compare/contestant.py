"""The two sides of a comparison: a saved bundle, or a checkpoint in eager torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...runtime.contract import LopaError
from ...runtime.engines import open_engine
from ...runtime.engines.protocol import DecodeState
from ...runtime.engines.single import SingleState
from ...runtime.manifest import (
    BUNDLE_FILE,
    MODEL_FILE,
    BundleManifest,
    read_bundle,
    sha256_of,
    verify_files,
)
from ...runtime.memory import smaller
from ...runtime.precision import POLICIES
from ...runtime.session import Session
from .recording import ReplayEngine

if TYPE_CHECKING:
    from ...export.source import ModelSource

CHECKPOINT_CONFIG = "config.json"
EAGER = "torch"  # stands in the place of a bundle's target
FLOAT_CACHES = ("float32", "float16")


@dataclass(frozen=True)
class EngineSettings:
    """How engines are opened (see `runtime.session.open_bundle`)."""

    provider: str = "cpu"
    threads: int = 0
    verify: bool = True
    strict: bool = False
    low_memory: bool = False
    runtime_cache: Path | None = None


@dataclass(frozen=True)
class Contestant:
    """One side: what it is, and the manifest by which it decodes.

    A checkpoint borrows the manifest of the bundle it is compared with, in its one precision.
    """

    label: str  # "A" | "B"
    folder: Path
    manifest: BundleManifest
    target: str  # the bundle's, or "torch"
    hashes: Mapping[str, str]  # sha256 (hex) of the manifest and of every engine file
    settings: EngineSettings
    source: ModelSource | None = None  # of a checkpoint
    tokenizer: Path | None = None  # folder that has the tokenizer

    @property
    def is_bundle(self) -> bool:
        """Whether it is a saved engine."""
        return self.target != EAGER

    @property
    def precision(self) -> str:
        """The recipe of a quantised model, else the precision of the graph."""
        quantization = self.manifest.quantization
        return self.manifest.graph.precision if quantization is None else quantization.recipe

    @property
    def fast(self) -> str | None:
        """The recipe of the fast graph, in a bundle that holds two precisions."""
        graph = self.manifest.fast
        return None if graph is None else graph.quantization.recipe

    def precisions(self, policy: str) -> list[str]:
        """What its decodes run under a precision policy; raises LopaError if it lacks that."""
        if policy not in POLICIES[1:]:
            return [self.precision]
        if self.fast is None:
            what = "bundle of one precision" if self.is_bundle else "checkpoint"
            raise LopaError(
                f"precision policy {policy!r} is for two precisions, {self.folder} is a {what}: "
                "compare bundles built with --fast-model, or decode with --precision-policy full"
            )
        return [self.fast] if policy == "fast" else [self.precision, self.fast]

    def open(self) -> ReplayEngine:
        """Load the engine; raises LopaError."""
        settings = self.settings
        engine: DecodeState
        if self.is_bundle:
            engine = open_engine(
                self.folder,
                self.manifest,
                settings.provider,
                settings.threads,
                strict=settings.strict,
                runtime_cache=settings.runtime_cache,
            ).decode_state()
        else:
            import torch

            from .eager_engine import EagerEngine, load_module

            if settings.threads:
                torch.set_num_threads(settings.threads)
            assert self.source is not None
            engine = EagerEngine(load_module(self.source), self.manifest.instances)
        return cast(ReplayEngine, engine)

    def session(self, engine: DecodeState) -> Session:
        """A session that decodes with `engine`."""
        return Session(self.tokenizer or self.folder, self.manifest, SingleState(engine))

    def to_json(self) -> dict[str, Any]:
        """What the report says about this side."""
        return {
            "folder": str(self.folder),
            "target": self.target,
            "precision": self.precision,
            "fast_precision": self.fast,
            "checkpoint": self.manifest.source.checkpoint,
            "checkpoint_fingerprint": self.manifest.source.fingerprint,
            "sha256": dict(self.hashes),
            "versions": {**self.manifest.versions, **self.manifest.engine.versions},
        }


def open_bundle_side(folder: Path, label: str, settings: EngineSettings) -> Contestant:
    """Read a bundle and check its files; raises LopaError."""
    if not folder.exists():
        raise LopaError(f"no bundle at {folder}; make one with: lopa build CHECKPOINT -o {folder}")
    manifest = read_bundle(folder)
    if settings.verify:
        verify_files(folder, manifest.files)
    if settings.low_memory:
        manifest = smaller(manifest)
    hashes = {BUNDLE_FILE: sha256_of(folder / BUNDLE_FILE)}
    tokenizer = folder if (folder / "tokenizer.json").is_file() else None
    hashes |= {
        name: record.sha256
        for name, record in manifest.files.items()
        if not name.endswith((".json", ".jinja"))
    }
    return Contestant(
        label,
        folder,
        manifest,
        manifest.engine.target,
        hashes,
        settings,
        tokenizer=tokenizer,
    )


def open_other_side(folder: Path, first: Contestant, adapter: Path | None) -> Contestant:
    """Open what the bundle `first` is compared with: a bundle or a checkpoint, by its files."""
    if not folder.exists():
        raise LopaError(f"nothing at {folder}; expected a bundle (lopa build) or a checkpoint")
    if (folder / BUNDLE_FILE).is_file():
        if adapter is not None:
            raise LopaError(f"--adapter is for a checkpoint, {folder} is a bundle")
        return open_bundle_side(folder, "B", first.settings)
    if (folder / MODEL_FILE).is_file():
        raise LopaError(
            f"{folder} is a model folder; parity is measured on saved engines: "
            f"lopa build {folder} -o BUNDLE, then compare that"
        )
    if not (folder / CHECKPOINT_CONFIG).is_file():
        raise LopaError(f"{folder} is neither a bundle (lopa build) nor a checkpoint")
    from ...export.source import open_source

    source = open_source(folder, adapter, first.manifest.model.candidates)
    manifest = first.manifest
    manifest = replace(
        manifest,
        model=source.spec.info,
        graph=replace(manifest.graph, precision="fp32"),
        source=source.source,
        versions=_eager_versions(),
        engine=replace(manifest.engine, versions={}),
        fast=None,
    )
    hashes = {"tensors": source.source.fingerprint}
    if source.source.adapter_fingerprint is not None:
        hashes["adapter"] = source.source.adapter_fingerprint
    return Contestant(
        "B",
        folder,
        manifest,
        EAGER,
        hashes,
        first.settings,
        source=source,
        tokenizer=first.tokenizer,
    )


def check_comparable(first: Contestant, second: Contestant) -> None:
    """Raise LopaError unless both run the same model with the same tokens and room to decode in."""
    one, two = first.manifest, second.manifest
    differing = [
        f"{field.name} is {getattr(one.model, field.name)!r} and {getattr(two.model, field.name)!r}"
        for field in fields(one.model)
        if getattr(one.model, field.name) != getattr(two.model, field.name)
    ]
    if differing:
        raise LopaError(
            f"{first.folder} and {second.folder} are not the same model: {'; '.join(differing)}"
        )
    names = {name for name in (*one.files, *two.files) if name.startswith("tokenizer")}
    if second.is_bundle and first.tokenizer and second.tokenizer:
        for name in sorted(names):
            if one.files.get(name) != two.files.get(name):
                raise LopaError(
                    f"{first.folder} and {second.folder} have different {name}; build both from "
                    "the same checkpoint"
                )
    rooms = [_room(manifest) for manifest in (one, two)]
    if rooms[0] != rooms[1]:
        raise LopaError(
            f"{first.folder} decodes in {rooms[0]}, {second.folder} in {rooms[1]}; build both with "
            "the same --lookahead, --window and --context"
        )


def caches_fault(first: Contestant, second: Contestant) -> str | None:
    """Why steps recorded from the first cannot run on the second; None if they can."""
    found = [side.manifest.model_dtype for side in (first, second)]
    if set(found) <= set(FLOAT_CACHES):
        return None
    floats = " and ".join(FLOAT_CACHES)
    return f"caches of {found[0]} and {found[1]}, steps can be carried over in {floats} only"


def _room(manifest: BundleManifest) -> str:
    """What the instances let a decode do: widest window per number of branches, and context."""
    counts = sorted({item.branches for item in manifest.instances})
    windows = {
        count: max(item.window for item in manifest.instances if item.branches >= count)
        for count in counts
    }
    context = max(item.context for item in manifest.instances)
    return f"windows {windows} (by branches), context {context}"


def _eager_versions() -> dict[str, str]:
    import importlib.metadata

    return {name: importlib.metadata.version(name) for name in ("lopa", "torch")}
