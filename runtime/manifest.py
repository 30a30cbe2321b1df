"""Manifests: `model.json` of an exported model folder, `manifest.json` of a bundle.

Frozen dataclasses are the schema; reading checks the seal, then every field, and lists all
faults at once.
"""

from __future__ import annotations

import hashlib
import json
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from .contract import (
    CONTRACT_VERSION,
    MODEL_DTYPES,
    Instance,
    LopaError,
    TensorSpec,
    input_specs,
    output_specs,
)
from .engine_info import EngineInfo
from .quantization import FastGraph, Quantization
from .schema import decode
from .seal import DIGESTS, seal_faults, sealed
from .staging import write_whole
from .strict_json import read_json

SCHEMA_VERSION = 2
UNSEALED_SCHEMA = 1  # had no digests
MODEL_FILE = "model.json"
BUNDLE_FILE = "manifest.json"

ADDRESS_SPACE = 2**47  # bytes; no machine runs what has more

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
WINDOW_ATTENTION = ("full", "block-causal")
_COUNTS = (
    "layers",
    "hidden_size",
    "heads",
    "kv_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
    "tokenizer_size",
    "max_positions",
    "candidates",
    "block_size",
)


class ManifestError(LopaError):
    """A manifest that is missing, malformed, of a newer schema, or disagrees with its files."""


@dataclass(frozen=True)
class ModelInfo:
    """What the decoder must know about the model: dimensions and traits."""

    family: str
    model_type: str
    layers: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int  # rows of the head; ids at or above tokenizer_size are never candidates
    tokenizer_size: int
    max_positions: int
    candidates: int  # K kept per head row
    mask_token_id: int
    pad_token_id: int
    stop_token_ids: tuple[int, ...]
    logit_shift: int  # 1: row i predicts position i + 1; 0: row i predicts position i
    window_attention: str  # what the model was trained with: "full" or "block-causal"
    block_size: int  # block length the model was trained with

    def faults(self) -> list[str]:
        """List contradictions between the fields."""
        found = []
        for name, known in (
            ("window_attention", WINDOW_ATTENTION),
            ("logit_shift", (0, 1)),
        ):
            if getattr(self, name) not in known:
                listed = ", ".join(str(item) for item in known)
                found.append(f"{name} is {getattr(self, name)!r}, expected one of: {listed}")
        for name in _COUNTS:
            if getattr(self, name) < 1:
                found.append(f"{name} is {getattr(self, name)}, expected 1 or more")
        ids = [("mask_token_id", self.mask_token_id), ("pad_token_id", self.pad_token_id)]
        ids += [("stop_token_ids", value) for value in self.stop_token_ids]
        for name, value in ids:
            if not 0 <= value < self.vocab_size:
                found.append(f"{name} is {value}, outside the vocabulary of {self.vocab_size}")
        if self.candidates > self.vocab_size:
            found.append(f"candidates is {self.candidates}, the vocabulary {self.vocab_size}")
        if self.heads % max(self.kv_heads, 1):
            found.append(f"heads {self.heads} is no multiple of kv_heads {self.kv_heads}")
        return found


@dataclass(frozen=True)
class FileRecord:
    """Size in bytes and sha256 (hex) of one file of the folder."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Source:
    """Where the weights come from: folder names and content fingerprints (sha256, hex)."""

    checkpoint: str
    fingerprint: str
    adapter: str | None
    adapter_fingerprint: str | None


@dataclass(frozen=True)
class GraphInfo:
    """The ONNX graph of a model folder or the engine of a bundle."""

    file: str
    precision: str
    opset: int

    def faults(self) -> list[str]:
        """List contradictions between the fields."""
        if self.precision in MODEL_DTYPES:
            return []
        known = ", ".join(sorted(MODEL_DTYPES))
        return [f"precision is {self.precision!r}, expected one of: {known}"]


@dataclass(frozen=True)
class ModelManifest:
    """`model.json`: an exported model, ready for calibration or a build."""

    schema: int
    contract: int
    model: ModelInfo
    graph: GraphInfo
    source: Source
    versions: dict[str, str]
    files: dict[str, FileRecord]
    quantization: Quantization | None = None

    def faults(self) -> list[str]:
        """List contradictions between the fields."""
        return _shared_faults(self)

    @property
    def model_dtype(self) -> str:
        """NumPy dtype name of caches and window outputs."""
        return _cache_dtype(self.graph, self.quantization)


@dataclass(frozen=True)
class BundleManifest:
    """`manifest.json`: a saved engine with its instances and tokenizer."""

    schema: int
    contract: int
    model: ModelInfo
    graph: GraphInfo
    engine: EngineInfo
    instances: tuple[Instance, ...]
    source: Source
    versions: dict[str, str]
    files: dict[str, FileRecord]
    quantization: Quantization | None = None
    fast: FastGraph | None = None  # the same model a second time, for steps that explore

    def faults(self) -> list[str]:
        """List contradictions between the fields."""
        found = _shared_faults(self)
        found += [
            f"instances[{index}]: {fault}"
            for index, instance in enumerate(self.instances)
            for fault in instance.faults()
        ]
        if not self.instances:
            found.append("instances is empty, expected at least one")
        for instance in self.instances:
            inputs, outputs = self.tensor_specs(instance)
            size = sum(spec.bytes for spec in (*inputs, *outputs))
            if size > ADDRESS_SPACE:
                found.append(f"a step of {instance.name} would have over 2^47 bytes of tensors")
        if self.fast is not None and self.fast.file not in self.files:
            found.append(f"fast.file {self.fast.file} is not listed in files")
        if self.engine.stamp is not None:
            profiles = self.engine.stamp.profiles
            found += [
                f"engine.stamp.profiles lacks the instance {instance.name}"
                for instance in self.instances
                if instance.name not in profiles
            ]
        return found

    @property
    def model_dtype(self) -> str:
        """NumPy dtype name of caches and window outputs."""
        return _cache_dtype(self.graph, self.quantization)

    @property
    def step_files(self) -> tuple[str, ...]:
        """Names of the step graph and, where there is one, the fast graph."""
        return (self.graph.file, *([] if self.fast is None else [self.fast.file]))

    def tensor_specs(
        self, instance: Instance
    ) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        """Inputs and outputs of the engine at `instance`, in contract order."""
        return step_specs(self, instance)


def step_specs(
    manifest: ModelManifest | BundleManifest, instance: Instance
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs of the model's step at `instance`, in contract order."""
    info, dtype = manifest.model, manifest.model_dtype
    dims = (info.layers, info.kv_heads, info.head_dim)
    return (
        input_specs(instance, *dims, dtype),
        output_specs(instance, *dims, info.candidates, dtype),
    )


def _shared_faults(manifest: ModelManifest | BundleManifest) -> list[str]:
    """Contradictions between the fields that both kinds of manifest have."""
    found = [
        f"{key} is {value}, expected {known}"
        for key, value, known in (
            ("schema", manifest.schema, SCHEMA_VERSION),
            ("contract", manifest.contract, CONTRACT_VERSION),
        )
        if value != known
    ]
    for name, record in manifest.files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or not path.parts or ".." in path.parts or "\0" in name:
            found.append(f"files names {name!r:.60}, which lies outside the folder")
        if record.bytes < 0:
            found.append(f"files.{name}.bytes is {record.bytes}, expected 0 or more")
    if manifest.graph.file not in manifest.files:
        found.append(f"graph.file {manifest.graph.file} is not listed in files")
    return found


def _cache_dtype(graph: GraphInfo, quantization: Quantization | None) -> str:
    cache = None if quantization is None else quantization.cache
    return cache or MODEL_DTYPES[graph.precision]


ManifestT = TypeVar("ManifestT", ModelManifest, BundleManifest)


def model_hash(manifest: ModelManifest) -> str:
    """The sha256 (hex) of graph and weights of a model folder, by their recorded hashes."""
    files = {
        name: record.sha256
        for name, record in sorted(manifest.files.items())
        if name not in TOKENIZER_FILES
    }
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def write_manifest(folder: Path, manifest: ModelManifest | BundleManifest) -> Path:
    """Write the manifest of `folder`, sealed, as sorted, indented JSON and return its path."""
    path = folder / (MODEL_FILE if isinstance(manifest, ModelManifest) else BUNDLE_FILE)
    text = json.dumps(sealed(asdict(manifest)), indent=2, sort_keys=True)
    write_whole(path, (text + "\n").encode("utf-8"))
    return path


def read_model(folder: Path) -> ModelManifest:
    """Read `model.json`; raises ManifestError listing every fault."""
    return _read(folder / MODEL_FILE, ModelManifest, "an exported model folder (lopa export)")


def read_bundle(folder: Path) -> BundleManifest:
    """Read `manifest.json`; raises ManifestError listing every fault."""
    return _read(folder / BUNDLE_FILE, BundleManifest, "a bundle (lopa build)")


def record_files(folder: Path, names: list[str]) -> dict[str, FileRecord]:
    """Hash the named files of `folder`."""
    return {
        name: FileRecord((folder / name).stat().st_size, sha256_of(folder / name))
        for name in sorted(names)
    }


def verify_files(folder: Path, files: Mapping[str, FileRecord]) -> None:
    """Compare sizes and sha256 with the manifest; raises ManifestError naming every difference."""
    faults = file_faults(folder, files)
    if faults:
        again = "export" if (folder / MODEL_FILE).is_file() else "build"
        raise ManifestError(
            f"{folder}: files do not match the manifest: {'; '.join(faults)}; {again} it again"
        )


def file_faults(folder: Path, files: Mapping[str, FileRecord]) -> list[str]:
    """List how the files of `folder` differ from their records."""
    faults = []
    for name, record in files.items():
        path = folder / name
        if not path.is_file():
            faults.append(f"{name} is missing")
        elif path.stat().st_size != record.bytes:
            faults.append(f"{name} has {path.stat().st_size} bytes, manifest says {record.bytes}")
        elif sha256_of(path) != record.sha256:
            faults.append(f"{name} was changed: sha256 differs from the manifest")
    faults += [
        f"{name} is not listed in the manifest"
        for name in TOKENIZER_FILES
        if name not in files and (folder / name).is_file()
    ]
    return faults


def sha256_of(path: Path) -> str:
    """Return the sha256 (hex) of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_manifest(path: Path) -> dict[str, Any]:
    """Read the JSON of a manifest whatever its seal and fields; raises ManifestError."""
    try:
        data = read_json(path)
    except LopaError as error:
        raise ManifestError(f"{error}; {_again(path)}") from None
    except OSError as error:
        raise ManifestError(f"cannot read {path}: {error.strerror}") from None
    if not isinstance(data, dict):
        raise ManifestError(f"{path} holds {type(data).__name__}, expected an object")
    for key, known in (("schema", SCHEMA_VERSION), ("contract", CONTRACT_VERSION)):
        value = data.get(key)
        if isinstance(value, int) and value > known:
            raise ManifestError(
                f"{path}: {key} version {str(value)[:20]} is newer than {known}, the newest this "
                "lopa reads; upgrade lopa or build the bundle again with this version"
            )
    return data


def decode_manifest(path: Path, data: Mapping[str, Any], cls: type[ManifestT]) -> ManifestT:
    """Check every field of loaded JSON, digests apart; raises ManifestError listing all faults."""
    faults: list[str] = []
    sections = {name: value for name, value in data.items() if name != DIGESTS}
    manifest = decode(cls, sections, "", faults)
    if faults:
        raise ManifestError(f"{path} is malformed: {'; '.join(faults)}; {_again(path)}")
    return typing.cast(ManifestT, manifest)


def _read(path: Path, cls: type[ManifestT], kind: str) -> ManifestT:
    if not path.is_file():
        raise ManifestError(f"{path.parent} is not {kind}: no {path.name} in it")
    data = load_manifest(path)
    reseal = f"or accept it as it is with: lopa inspect {path.parent} --reseal"
    if data.get("schema") == UNSEALED_SCHEMA and DIGESTS not in data:
        raise ManifestError(
            f"{path} is of schema {UNSEALED_SCHEMA}, which has no digests, so changes go unseen; "
            f"{_again(path)}, {reseal}"
        )
    faults = seal_faults(data)
    if faults:
        raise ManifestError(
            f"{path} is not as lopa wrote it: {'; '.join(faults)}; {_again(path)}, {reseal}"
        )
    return decode_manifest(path, data, cls)


def _again(path: Path) -> str:
    return f"{'export' if path.name == MODEL_FILE else 'build'} it again"
