"""Opens a Hugging Face checkpoint folder: JSON files and safetensors, checked before use."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open

from ..runtime.contract import LopaError
from ..runtime.manifest import sha256_of

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SHARD_PATTERN = "model-*-of-*.safetensors"
PICKLE_PATTERN = "pytorch_model*.bin"

# safetensors dtype name -> what torch reads it as.
STORED_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
LISTED_NAMES = 12

Result = TypeVar("Result")


class CheckpointError(LopaError):
    """A checkpoint folder that cannot be used; `faults` lists everything found wrong with it."""

    def __init__(self, folder: Path, faults: Sequence[str]) -> None:
        self.folder = folder
        self.faults = tuple(faults)
        super().__init__(f"{folder}: {'; '.join(faults)}")


@dataclass(frozen=True)
class TensorRecord:
    """Where one tensor is stored: file, name in it, safetensors dtype name and shape."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint; tensors stay on disk until read."""

    folder: Path
    config: dict[str, Any]
    generation_config: dict[str, Any]
    tensors: dict[str, TensorRecord]

    def read(self, name: str) -> torch.Tensor:
        """Return one tensor in its stored dtype and shape."""
        return read_tensor(self.tensors[name])


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open and check `folder`; raises CheckpointError listing every fault of JSON and tensors."""
    if not folder.is_dir():
        raise CheckpointError(
            folder, ["no such folder, expected a Hugging Face checkpoint (config.json, weights)"]
        )
    faults: list[str] = []
    config = collect(faults, lambda: read_json(folder / CONFIG_FILE))
    generation = collect(faults, lambda: read_json(folder / GENERATION_FILE, optional=True))
    tensors = collect(faults, lambda: _read_folder(folder))
    if config is None or generation is None or tensors is None:
        raise CheckpointError(folder, faults)
    return Checkpoint(folder, config, generation, tensors)


def fingerprint(checkpoint: Checkpoint) -> str:
    """Return the sha256 (hex) of what defines the model: both configs and all tensor files."""
    folder = checkpoint.folder
    configs = [folder / name for name in (CONFIG_FILE, GENERATION_FILE) if (folder / name).exists()]
    return fingerprint_files([*configs, *{record.file for record in checkpoint.tensors.values()}])


def fingerprint_files(files: Iterable[Path]) -> str:
    """Return the sha256 (hex) over names and contents of `files`, whatever their folder."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda path: path.name):
        digest.update(f"{file.name} {sha256_of(file)}\n".encode())
    return digest.hexdigest()


def collect(faults: list[str], step: Callable[[], Result]) -> Result | None:
    """Run `step`; what a CheckpointError lists is appended to `faults` and None returned."""
    try:
        return step()
    except CheckpointError as error:
        faults.extend(error.faults)
        return None


def listed(names: Iterable[str]) -> str:
    """Join sorted names for a message; long lists are cut and counted."""
    ordered = sorted(names)
    text = ", ".join(ordered[:LISTED_NAMES])
    more = len(ordered) - LISTED_NAMES
    return f"{text} and {more} more" if more > 0 else text


def read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    """Read a JSON object; an optional file that is absent gives {}."""
    if not path.is_file():
        if optional:
            return {}
        raise CheckpointError(path.parent, [f"{path.name} is missing, download it again"])
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(
            path.parent, [f"{path.name} is not valid JSON ({error}), download it again"]
        ) from None
    if not isinstance(data, dict):
        raise CheckpointError(
            path.parent, [f"{path.name} holds {type(data).__name__}, expected a JSON object"]
        )
    return data


def read_tensor(record: TensorRecord, rows: tuple[int, int] | None = None) -> torch.Tensor:
    """Return a tensor, or its rows [start, stop), in its stored dtype.

    Only its own pages of the file are read.
    """
    # Opened per read: a handle kept open would keep every page read so far mapped.
    with safe_open(record.file, framework="pt") as file:
        tensor: torch.Tensor = (
            file.get_tensor(record.name)
            if rows is None
            else file.get_slice(record.name)[rows[0] : rows[1]]
        )
        return tensor


def read_records(file: Path) -> dict[str, TensorRecord]:
    """Read the header of a safetensors file; raises CheckpointError if it is damaged."""
    try:
        with safe_open(file, framework="pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            records = {
                name: TensorRecord(file, name, found.get_dtype(), tuple(found.get_shape()))
                for name, found in slices.items()
            }
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            file.parent, [f"{file.name} is truncated or corrupt ({error}), download it again"]
        ) from None
    unsupported = {
        record.name: record.dtype
        for record in records.values()
        if record.dtype not in STORED_DTYPES
    }
    if unsupported:
        raise CheckpointError(
            file.parent,
            [
                f"{file.name} stores {listed(unsupported)} as "
                f"{'/'.join(sorted(set(unsupported.values())))}, expected one of "
                f"{'/'.join(STORED_DTYPES)}; use an unquantised checkpoint"
            ],
        )
    return records


def _read_folder(folder: Path) -> dict[str, TensorRecord]:
    """Find all tensors of a folder; index and shards must agree both ways."""
    single, shards = folder / WEIGHTS_FILE, set(folder.glob(SHARD_PATTERN))
    if (folder / INDEX_FILE).is_file():
        return _read_sharded(folder, shards | ({single} if single.is_file() else set()))
    if single.is_file() and not shards:
        return read_records(single)
    if shards:
        fault = (
            f"{listed(path.name for path in shards)}: found but {INDEX_FILE} is missing, "
            "download it again"
        )
    elif any(folder.glob(PICKLE_PATTERN)):
        fault = (
            "weights are pickled (pytorch_model.bin), which lopa never loads because a pickle can "
            f"run code; convert them to {WEIGHTS_FILE} (safetensors.torch.save_file)"
        )
    else:
        fault = f"no weights, expected {WEIGHTS_FILE} or {INDEX_FILE} with its shards"
    raise CheckpointError(folder, [fault])


def _read_sharded(folder: Path, present: set[Path]) -> dict[str, TensorRecord]:
    index = read_json(folder / INDEX_FILE).get("weight_map")
    if not isinstance(index, dict) or not all(
        isinstance(shard, str) and Path(shard).name == shard for shard in index.values()
    ):
        raise CheckpointError(
            folder, [f"{INDEX_FILE} has no valid weight_map, expected tensor name -> file name"]
        )
    faults: list[str] = []
    tensors: dict[str, TensorRecord] = {}
    unread = set()
    counts = Counter(index.values())
    for shard in sorted({folder / name for name in counts} | present):
        if not shard.is_file():
            wanted = counts[shard.name]
            faults.append(f"{shard.name} is missing, the index places {wanted} tensors there")
            unread.add(shard.name)
            continue
        records = collect(faults, partial(read_records, shard))
        if records is None:
            unread.add(shard.name)
            continue
        twice = tensors.keys() & records.keys()
        if twice:
            faults.append(f"{shard.name} stores again what an earlier shard has: {listed(twice)}")
        extra = {name for name in records if index.get(name) != shard.name} - twice
        if extra:
            faults.append(
                f"{shard.name} has tensors the index does not place there: {listed(extra)}"
            )
        tensors.update(records)
    lost = {name for name, shard in index.items() if shard not in unread and name not in tensors}
    if lost:
        faults.append(f"the index names tensors that no shard has: {listed(lost)}")
    if faults:
        raise CheckpointError(
            folder, [*faults, f"{INDEX_FILE} and shards must match, download them again"]
        )
    return tensors
