"""Reads PEFT's `adapter_config.json`: which modules are adapted, with which rank and scale."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from .checkpoint import CheckpointError

CONFIG_FILE = "adapter_config.json"
ALL_LINEAR = "all-linear"

Number = TypeVar("Number", int, float)

# Keys that, when set, change the arithmetic in ways lopa does not merge.
UNSUPPORTED = (
    "use_dora",
    "use_qalora",
    "lora_bias",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
)
# Initialisations that change the base weights, so B @ A alone does not give the trained model.
BASE_CHANGING_INITS = ("pissa", "olora", "corda", "loftq", "lora_ga")


class AdapterError(CheckpointError):
    """An adapter that is damaged, unsupported or made for another model."""


@dataclass(frozen=True)
class AdapterConfig:
    """The parts of a LoRA config that decide the merged weights.

    `target_modules` and `exclude_modules` are a regular expression or a tuple of name endings.
    """

    base_name: str
    rank: int
    alpha: float
    rslora: bool
    rank_pattern: dict[str, int]
    alpha_pattern: dict[str, float]
    target_modules: str | tuple[str, ...]
    exclude_modules: str | tuple[str, ...]
    layers: tuple[int, ...] | None
    modules_to_save: tuple[str, ...]
    bias: str
    ensure_weight_tying: bool

    def targets(self, module: str, is_vocabulary: bool) -> bool:
        """Tell whether PEFT puts LoRA on `module`; `is_vocabulary`: it is the embedding or head."""
        if _selects(self.exclude_modules, module) or self.saves(module):
            return False
        if self.target_modules == ALL_LINEAR:
            return not is_vocabulary
        if not _selects(self.target_modules, module):
            return False
        if self.layers is None or module in self.target_modules:
            return True
        index = re.search(r"\.(\d+)\.", module)
        return index is not None and int(index[1]) in self.layers

    def target_names(self) -> tuple[str, ...]:
        """Return the listed module names; none for a regular expression."""
        return self.target_modules if isinstance(self.target_modules, tuple) else ()

    def saves(self, module: str) -> bool:
        """Tell whether `module` is saved in full."""
        return any(module == key or module.endswith("." + key) for key in self.modules_to_save)

    def trains_bias(self, adapted: bool) -> bool:
        """Tell whether the bias of a module is trained, given whether LoRA adapts it."""
        return self.bias == "all" or (self.bias == "lora_only" and adapted)

    def rank_and_scale(self, module: str) -> tuple[int, float]:
        """Return r and alpha / r (rsLoRA: alpha / sqrt(r)) of `module`."""
        rank = _by_pattern(self.rank_pattern, module, self.rank)
        alpha = _by_pattern(self.alpha_pattern, module, self.alpha)
        return rank, alpha / (math.sqrt(rank) if self.rslora else rank)


def read_adapter_config(config: Mapping[str, Any], faults: list[str]) -> AdapterConfig | None:
    """Check a PEFT config; returns None and appends to `faults` if it cannot be merged.

    `fan_in_fan_out` needs no care: PEFT ignores it for linear layers, and all of ours are.
    """
    before = len(faults)
    kind = config.get("peft_type")
    if kind != "LORA":
        faults.append(f"{CONFIG_FILE}: peft_type is {kind!r}, only 'LORA' can be merged")
        return None
    for key in UNSUPPORTED:
        if config.get(key):
            faults.append(
                f"{CONFIG_FILE}: {key} is {config[key]!r}, which lopa cannot merge; "
                "merge it with peft (merge_and_unload) first"
            )
    init = str(config.get("init_lora_weights", True)).lower()
    if init.startswith(BASE_CHANGING_INITS):
        faults.append(
            f"{CONFIG_FILE}: init_lora_weights {init!r} changes the base weights; convert the "
            "adapter to plain LoRA with peft first"
        )
    bias = config.get("bias", "none")
    if bias not in ("none", "lora_only", "all"):
        faults.append(f"{CONFIG_FILE}: bias is {bias!r}, expected none, lora_only or all")
    made = AdapterConfig(
        base_name=str(config.get("base_model_name_or_path")),
        rank=int(_positive("r", config.get("r"), True, faults)),
        alpha=_positive("lora_alpha", config.get("lora_alpha"), False, faults),
        rslora=bool(config.get("use_rslora")),
        rank_pattern={
            key: int(_positive(f"rank_pattern[{key!r}]", value, True, faults))
            for key, value in _pattern("rank_pattern", config, faults).items()
        },
        alpha_pattern={
            key: _positive(f"alpha_pattern[{key!r}]", value, False, faults)
            for key, value in _pattern("alpha_pattern", config, faults).items()
        },
        target_modules=_selection("target_modules", config, faults, required=True),
        exclude_modules=_selection("exclude_modules", config, faults),
        layers=_layers(config, faults),
        modules_to_save=_names("modules_to_save", config, faults),
        bias=bias,
        ensure_weight_tying=bool(config.get("ensure_weight_tying")),
    )
    return made if len(faults) == before else None


def _by_pattern(pattern: Mapping[str, Number], module: str, default: Number) -> Number:
    """Return the value of the first key that matches the end of `module`, as PEFT does."""
    for key, value in pattern.items():
        if re.match(rf"(.*\.)?({key})$", module):
            return value
    return default


def _selects(selection: str | tuple[str, ...], module: str) -> bool:
    if isinstance(selection, str):
        return re.fullmatch(selection, module) is not None
    return any(module == key or module.endswith("." + key) for key in selection)


def _selection(
    name: str, config: Mapping[str, Any], faults: list[str], required: bool = False
) -> str | tuple[str, ...]:
    value = config.get(name)
    if not value and not required:
        return ()
    if isinstance(value, str):
        if value != ALL_LINEAR:
            _check_regex(name, value, faults)
        return value
    if value and isinstance(value, list) and all(isinstance(key, str) for key in value):
        return tuple(value)
    faults.append(
        f"{CONFIG_FILE}: {name} is {value!r}, expected a list of names or a regular expression"
    )
    return ()


def _names(name: str, config: Mapping[str, Any], faults: list[str]) -> tuple[str, ...]:
    selected = _selection(name, config, faults)
    return (selected,) if isinstance(selected, str) else selected


def _pattern(name: str, config: Mapping[str, Any], faults: list[str]) -> dict[str, Any]:
    value = config.get(name) or {}
    if not isinstance(value, dict):
        faults.append(f"{CONFIG_FILE}: {name} is {value!r}, expected module name -> number")
        return {}
    for key in value:
        _check_regex(name, key, faults)
    return value


def _check_regex(name: str, text: str, faults: list[str]) -> None:
    try:
        re.compile(text)
    except re.error as error:
        faults.append(f"{CONFIG_FILE}: {name} holds an invalid regular expression, {error}")


def _positive(name: str, value: Any, whole: bool, faults: list[str]) -> float:
    if (type(value) is int or (type(value) is float and not whole)) and value > 0:
        return float(value)
    kind = "integer" if whole else "number"
    faults.append(f"{CONFIG_FILE}: {name} is {value!r}, expected a positive {kind}")
    return 1.0


def _layers(config: Mapping[str, Any], faults: list[str]) -> tuple[int, ...] | None:
    value = config.get("layers_to_transform")
    if value is None or value == []:
        return None
    values = value if isinstance(value, list) else [value]
    if all(type(index) is int for index in values):
        return tuple(values)
    faults.append(f"{CONFIG_FILE}: layers_to_transform is {value!r}, expected layer numbers")
    return None
