"""Accept a bundle or model folder that was edited on purpose: its manifest is sealed again.

What is sealed must be what a build could have written: every field is checked, every file hashed,
and the engine or graph is held against the manifest before that is replaced, as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..runtime.contract import LopaError
from ..runtime.engines import open_engine
from ..runtime.manifest import (
    BUNDLE_FILE,
    MODEL_FILE,
    SCHEMA_VERSION,
    TOKENIZER_FILES,
    UNSEALED_SCHEMA,
    BundleManifest,
    FileRecord,
    ManifestError,
    ModelManifest,
    decode_manifest,
    load_manifest,
    record_files,
    write_manifest,
)
from ..runtime.prompt import TextCodec
from ..runtime.seal import seal_faults
from ..runtime.targets import find_target


@dataclass(frozen=True)
class Resealed:
    """The manifest as it is now, and what was not as it was sealed before."""

    manifest: BundleManifest | ModelManifest
    changes: tuple[str, ...]
    unchecked: str | None  # why the engine was not held against the manifest


def reseal(folder: Path) -> Resealed:
    """Validate the manifest of `folder` and seal it with its files as they are.

    Nothing is written when nothing changed. Raises LopaError; the manifest is then as it was.
    """
    bundle = (folder / BUNDLE_FILE).is_file()
    path = folder / (BUNDLE_FILE if bundle else MODEL_FILE)
    data = load_manifest(path)
    changes = seal_faults(data)
    if data.get("schema") == UNSEALED_SCHEMA:
        data["schema"] = SCHEMA_VERSION
        changes = [f"schema {UNSEALED_SCHEMA}, which had no digests, is now {SCHEMA_VERSION}"]
    manifest = _decoded(path, data)
    files = _recorded(folder, manifest.files)
    changes += _file_changes(manifest.files, files)
    manifest = replace(manifest, files=files)
    unchecked = _check(folder, manifest)
    if changes:
        write_manifest(folder, manifest)
    return Resealed(manifest, tuple(changes), unchecked)


def _decoded(path: Path, data: Mapping[str, Any]) -> BundleManifest | ModelManifest:
    if path.name == BUNDLE_FILE:
        return decode_manifest(path, data, BundleManifest)
    return decode_manifest(path, data, ModelManifest)


def _recorded(folder: Path, files: Mapping[str, FileRecord]) -> dict[str, FileRecord]:
    """Hash the files as they are, tokenizer files that were put there included."""
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise ManifestError(
            f"{folder} lacks {', '.join(missing)}, which its manifest lists; put back what is "
            "missing, or take it out of files"
        )
    added = [name for name in TOKENIZER_FILES if name not in files and (folder / name).is_file()]
    return record_files(folder, [*files, *added])


def _file_changes(before: Mapping[str, FileRecord], after: Mapping[str, FileRecord]) -> list[str]:
    changes = []
    for name, now in after.items():
        was = before.get(name)
        if was is None:
            changes.append(f"{name} was added: {now.bytes} bytes, sha256 {now.sha256[:12]}")
        elif was != now:
            changes.append(
                f"{name} was {was.bytes} bytes, sha256 {was.sha256[:12]}, is now {now.bytes} "
                f"bytes, sha256 {now.sha256[:12]}"
            )
    return changes


def _check(folder: Path, manifest: BundleManifest | ModelManifest) -> str | None:
    """Hold engine and tokenizer against the manifest; says why the engine was left out."""
    if (folder / "tokenizer.json").is_file():
        _check_tokenizer(folder, manifest)
    if isinstance(manifest, ModelManifest):
        from ..graphs.tensors import check_model_graph

        check_model_graph(folder, manifest)
    elif "cpu" in find_target(manifest.engine.target).providers:
        open_engine(folder, manifest, "cpu", threads=1)
    else:
        return f"lopa doctor {folder} compares a {manifest.engine.target} engine, on its GPU"
    return None


def _check_tokenizer(folder: Path, manifest: BundleManifest | ModelManifest) -> None:
    info = manifest.model
    tokenizer = TextCodec(folder, info.stop_token_ids).tokenizer
    largest = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    faults = []
    if tokenizer.id_to_token(info.mask_token_id) is None:
        faults.append(f"mask_token_id {info.mask_token_id} is no token of tokenizer.json")
    if largest >= info.vocab_size:
        faults.append(f"tokenizer.json has ids up to {largest}, vocab_size is {info.vocab_size}")
    if faults:
        raise LopaError(f"{folder}: {'; '.join(faults)}; correct the manifest or the tokenizer")
