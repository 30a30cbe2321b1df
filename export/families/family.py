"""What a model family is: how its config maps to a decoder and where its tensors are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..checkpoint import CONFIG_FILE
from ..spec import DecoderSpec
from ..tokenizer_files import TokenizerFacts


@dataclass(frozen=True)
class SourceTensor:
    """A checkpoint tensor; `transposed` means it is stored [out, in], canonical is [in, out]."""

    name: str
    transposed: bool


@dataclass(frozen=True)
class Family:
    """Config and tensor-name mapping of the models that share one decoder layout.

    `spec(config, generation_config, tokenizer, candidates, faults)` appends what is wrong with the
    config to `faults`; its result counts only if nothing was appended. `tied_head` of the result
    is what the config declares. `tensor_names(spec)` covers every canonical parameter.
    """

    name: str
    model_types: tuple[str, ...]
    spec: Callable[
        [Mapping[str, Any], Mapping[str, Any], TokenizerFacts, int, list[str]], DecoderSpec
    ]
    tensor_names: Callable[[DecoderSpec], dict[str, SourceTensor]]


class ConfigReader:
    """Typed access to `config.json`; every fault is appended and 0 returned in its place."""

    def __init__(self, config: Mapping[str, Any], faults: list[str]) -> None:
        self.config = config
        self.faults = faults

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a positive integer; a missing or null key gives `default` if there is one."""
        value = self._get(key, default)
        if type(value) is int and value > 0:
            return value
        self._refuse(key, value, "a positive integer")
        return 0

    def number(self, key: str) -> float:
        """Return a positive number."""
        value = self._get(key, None)
        if type(value) in (int, float) and value > 0:
            return float(value)
        self._refuse(key, value, "a positive number")
        return 0.0

    def flag(self, key: str, default: bool) -> bool:
        """Return a boolean."""
        value = self._get(key, default)
        if type(value) is bool:
            return value
        self._refuse(key, value, "true or false")
        return False

    def require(self, key: str, accepted: tuple[Any, ...]) -> None:
        """Refuse any value but those in `accepted`; None among them allows a missing key."""
        value = self.config.get(key)
        if value not in accepted:
            known = " or ".join("null" if one is None else repr(one) for one in accepted)
            self.fault(f"{key} is {value!r}, only {known} is supported")

    def rope_theta(self) -> float:
        """Return the RoPE base; any scaling of positions is refused."""
        for key in ("rope_scaling", "rope_parameters"):
            scaling = self.config.get(key)
            if scaling is None:
                continue
            kind = scaling.get("rope_type", scaling.get("type")) if type(scaling) is dict else None
            if kind != "default":
                self.fault(f"{key} is {scaling!r}, only null or type 'default' is supported")
            elif "rope_theta" in scaling and "rope_theta" not in self.config:
                return ConfigReader(scaling, self.faults).number("rope_theta")
        return self.number("rope_theta")

    def fault(self, text: str) -> None:
        """Append a fault of `config.json`."""
        self.faults.append(f"{CONFIG_FILE}: {text}")

    def _get(self, key: str, default: Any) -> Any:
        value = self.config.get(key)
        return default if value is None else value

    def _refuse(self, key: str, value: Any, expected: str) -> None:
        found = f"is {value!r}" if self.config.get(key) is not None else "is missing"
        self.fault(f"{key} {found}, expected {expected}")
