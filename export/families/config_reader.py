"""Typed access to `config.json`: every fault is noted, none stops the reading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..checkpoint import CONFIG_FILE


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

    def count(self, key: str, default: int | None = None) -> int:
        """Return an integer that may be zero; a missing or null key gives `default` if any."""
        value = self._get(key, default)
        if type(value) is int and value >= 0:
            return value
        self._refuse(key, value, "zero or a positive integer")
        return 0

    def number(self, key: str, default: float | None = None) -> float:
        """Return a positive number; a missing or null key gives `default` if there is one."""
        value = self._get(key, default)
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

    def integers(self, key: str) -> tuple[int, ...]:
        """Return a list of integers from zero on; a missing or null key gives none."""
        value = self._get(key, [])
        if type(value) is list and all(type(one) is int and one >= 0 for one in value):
            return tuple(value)
        self._refuse(key, value, "a list of layer numbers")
        return ()

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

    def block_size(self, keys: tuple[str, ...], default: int | None) -> int:
        """Return the block length under the first of `keys` that is stated."""
        stated = (key for key in keys if self.config.get(key) is not None)
        return self.integer(next(stated, keys[0]), default)

    def full_attention(self) -> None:
        """Refuse sliding windows, alone or of some layers."""
        window = self.config.get("sliding_window")
        if self.flag("use_sliding_window", False) and window is not None:
            self.fault(f"sliding_window {window!r} is in use, expected none")
        kinds = self.config.get("layer_types") or ()
        other = sorted({str(kind) for kind in kinds} - {"full_attention"})
        if other:
            self.fault(f"layer_types has {', '.join(other)}, only full_attention is supported")

    def fault(self, text: str) -> None:
        """Append a fault of `config.json`."""
        self.faults.append(f"{CONFIG_FILE}: {text}")

    def _get(self, key: str, default: Any) -> Any:
        value = self.config.get(key)
        return default if value is None else value

    def _refuse(self, key: str, value: Any, expected: str) -> None:
        found = f"is {value!r}" if self.config.get(key) is not None else "is missing"
        self.fault(f"{key} {found}, expected {expected}")
