"""Opens a PEFT LoRA folder and matches it, tensor by tensor, with the base model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .adapter_config import CONFIG_FILE, AdapterConfig, AdapterError, read_adapter_config
from .checkpoint import (
    TensorRecord,
    collect,
    fingerprint_files,
    listed,
    read_json,
    read_records,
)

WEIGHTS_FILE = "adapter_model.safetensors"
PICKLE_FILE = "adapter_model.bin"
PREFIX = "base_model.model."

# Tail of a saved LoRA tensor name -> which factor it is; embeddings have no `.weight`.
FACTORS = {
    ".lora_A.weight": "A",
    ".lora_B.weight": "B",
    ".lora_embedding_A": "A",
    ".lora_embedding_B": "B",
}


@dataclass(frozen=True)
class BaseModel:
    """The base model's tensors, [out, in] as stored, and its embedding and head by name.

    `shapes` lists the head even when it is tied to the embedding.
    """

    shapes: Mapping[str, tuple[int, ...]]
    embed: str
    head: str
    tied: bool

    @property
    def modules(self) -> dict[str, tuple[int, ...]]:
        """Weight shapes of the modules LoRA can adapt: linear layers, embedding and head."""
        return {
            name.removesuffix(".weight"): shape
            for name, shape in self.shapes.items()
            if name.endswith(".weight") and len(shape) == 2
        }


@dataclass(frozen=True)
class LoraUpdate:
    """Adds `scale * B @ A` to a weight [out, in]; for an embedding [V, d] its transpose."""

    factor_a: TensorRecord
    factor_b: TensorRecord
    scale: float


@dataclass(frozen=True)
class Adapter:
    """An adapter that fits its base: updates and full replacements by base tensor name."""

    folder: Path
    updates: dict[str, LoraUpdate]
    replacements: dict[str, TensorRecord]

    @property
    def fingerprint(self) -> str:
        """The sha256 (hex) of the adapter's config and tensors."""
        return fingerprint_files([self.folder / CONFIG_FILE, self.folder / WEIGHTS_FILE])


def open_adapter(folder: Path, base: BaseModel) -> Adapter:
    """Open a LoRA folder for `base`; raises AdapterError listing every fault."""
    if not folder.is_dir():
        raise AdapterError(folder, [f"no such folder, expected {CONFIG_FILE} and {WEIGHTS_FILE}"])
    faults: list[str] = []
    config = collect(faults, lambda: read_adapter_config(read_json(folder / CONFIG_FILE), faults))
    records = collect(faults, lambda: _read_tensors(folder))
    if config is None or records is None:
        raise AdapterError(folder, faults)
    matcher = _Matcher(config, base, records, faults)
    adapter = Adapter(folder, matcher.updates(), matcher.replacements())
    matcher.check_complete(adapter)
    if faults:
        raise AdapterError(folder, faults)
    return adapter


def _read_tensors(folder: Path) -> dict[str, TensorRecord]:
    if (folder / WEIGHTS_FILE).is_file():
        return read_records(folder / WEIGHTS_FILE)
    if (folder / PICKLE_FILE).is_file():
        raise AdapterError(
            folder,
            [
                f"{PICKLE_FILE} is a pickle, which lopa never loads because it can run code; "
                f"convert it to {WEIGHTS_FILE} (safetensors.torch.save_file)"
            ],
        )
    raise AdapterError(folder, [f"{WEIGHTS_FILE} is missing, download it again"])


class _Matcher:
    """Pairs the saved tensors of an adapter with modules of the base."""

    def __init__(
        self,
        config: AdapterConfig,
        base: BaseModel,
        records: Mapping[str, TensorRecord],
        faults: list[str],
    ) -> None:
        self.config = config
        self.base = base
        self.faults = faults
        self.strangers: list[str] = []  # saved tensors that fit nothing in the base
        self.misshapen: list[str] = []
        self.factors: dict[str, dict[str, TensorRecord]] = {}
        self.full: dict[str, TensorRecord] = {}
        # Trained on the bare body, names lack its leading "model.".
        root = base.embed.split(".")[0] + "."
        bare = not any(name in base.shapes for name in map(_weight_name, records)) and any(
            root + name in base.shapes for name in map(_weight_name, records)
        )
        self.root = root if bare else ""
        for saved, record in records.items():
            name = self.root + saved.removeprefix(PREFIX)
            tail = next((tail for tail in FACTORS if name.endswith(tail)), None)
            if tail is not None:
                self.factors.setdefault(name.removesuffix(tail), {})[FACTORS[tail]] = record
            elif ".lora_" in name:
                faults.append(f"{saved} is no plain LoRA factor, only lora_A and lora_B merge")
            else:
                self.full[name.replace(".base_layer.", ".")] = record

    def updates(self) -> dict[str, LoraUpdate]:
        """Return the LoRA updates by base weight name."""
        updates = {}
        modules = self.base.modules
        for module, found in self.factors.items():
            if module not in modules:
                self.strangers.extend(record.name for record in found.values())
                continue
            if not self.config.targets(self._seen(module), self._is_vocabulary(module)):
                self.faults.append(f"{module} has LoRA tensors but is not in target_modules")
            if len(found) < 2:
                present, absent = ("A", "B") if "A" in found else ("B", "A")
                self.faults.append(f"{module} has lora_{present} but no lora_{absent}")
                continue
            rank, scale = self.config.rank_and_scale(self._seen(module))
            wide, narrow = modules[module]
            if module == self.base.embed.removesuffix(".weight"):
                wide, narrow = narrow, wide
            self._check_shape(found["A"], (rank, narrow))
            self._check_shape(found["B"], (wide, rank))
            updates[f"{module}.weight"] = LoraUpdate(found["A"], found["B"], scale)
        return updates

    def replacements(self) -> dict[str, TensorRecord]:
        """Return fully saved tensors (modules_to_save, biases) by base tensor name."""
        accepted = {}
        for name, record in self.full.items():
            module, _, kind = name.rpartition(".")
            if name not in self.base.shapes:
                self.strangers.append(record.name)
                continue
            self._check_shape(record, self.base.shapes[name])
            if self.config.saves(self._seen(module)):
                if module in self.factors:
                    self.faults.append(f"{module} is both saved in full and adapted by LoRA")
            elif not (kind == "bias" and self.config.bias != "none"):
                self.faults.append(
                    f"{record.name} is saved in full but named by neither modules_to_save nor bias"
                )
            accepted[name] = record
        return accepted

    def check_complete(self, adapter: Adapter) -> None:
        """Append faults for strangers, wrong shapes and what the config promises but lacks."""
        if self.strangers and not adapter.updates and not adapter.replacements:
            self.faults[:] = [
                f"none of its {len(self.strangers)} tensors fits the base model (first: "
                f"{min(self.strangers)}); it was made for {self.config.base_name!r}"
            ]
            return
        self._check_origin()
        modules = {self._seen(name): name for name in self.base.modules if self._visible(name)}
        wanted = {
            module
            for seen, module in modules.items()
            if self.config.targets(seen, self._is_vocabulary(module))
        }
        lost = wanted - self.factors.keys()
        if lost:
            self.faults.append(f"target_modules covers {listed(lost)}, which have no LoRA tensors")
        idle = [key for key in self.config.target_names() if not _matches_any(key, modules)]
        if idle:
            self.faults.append(f"target_modules names {listed(idle)}, not in the base model")
        for key in self.config.modules_to_save:
            if not any(_ends_with(name.rpartition(".")[0], key) for name in adapter.replacements):
                self.faults.append(f"modules_to_save names {key}, but none of its tensors is saved")
        biases = {
            name
            for name in self.base.shapes
            if name.endswith(".bias") and self.config.trains_bias(name[:-5] in wanted)
        }
        unsaved = biases - adapter.replacements.keys()
        if unsaved:
            self.faults.append(
                f"bias is {self.config.bias!r} but {listed(unsaved)} are not saved; "
                "save the adapter again or train with bias='none'"
            )
        vocabulary = {self.base.embed, self.base.head}
        touched = vocabulary & (adapter.updates.keys() | adapter.replacements.keys())
        if self.base.tied and touched and self.config.ensure_weight_tying:
            self.faults.append(
                "ensure_weight_tying on a tied head is not supported; merge it with peft first"
            )

    def _check_origin(self) -> None:
        if self.strangers:
            self.faults.append(f"tensors that fit no module of the base: {listed(self.strangers)}")
        if self.misshapen:
            self.faults.append(f"tensors of the wrong shape: {listed(self.misshapen)}")
        if self.strangers or self.misshapen:
            self.faults.append(
                f"the adapter was made for {self.config.base_name!r}; use it with that model, or "
                "check r and rank_pattern"
            )

    def _check_shape(self, record: TensorRecord, expected: tuple[int, ...]) -> None:
        if record.shape != expected:
            self.misshapen.append(
                f"{record.name} is {list(record.shape)}, expected {list(expected)}"
            )

    def _seen(self, module: str) -> str:
        """Return the module name as PEFT saw it when it matched its patterns."""
        return module.removeprefix(self.root)

    def _visible(self, module: str) -> bool:
        return module.startswith(self.root)

    def _is_vocabulary(self, module: str) -> bool:
        return f"{module}.weight" in (self.base.embed, self.base.head)


def _weight_name(saved: str) -> str:
    name = saved.removeprefix(PREFIX)
    for tail in FACTORS:
        if name.endswith(tail):
            return name.removesuffix(tail) + ".weight"
    return name


def _ends_with(module: str, key: str) -> bool:
    return module == key or module.endswith("." + key)


def _matches_any(key: str, modules: Mapping[str, str]) -> bool:
    return any(_ends_with(module, key) for module in modules)
