"""The strategies there are, and which settings each has: a new one is one line here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..precision import PrecisionPolicy
from ..sampling import Sampler
from ..scoring import BranchScore
from ..setting import Setting, count, setting, settings_of
from .block_diffusion import BlockDiffusionSettings
from .d2f import D2FSettings
from .fast_dllm import FastDLLMSettings
from .lopa import LookaheadSettings
from .protocol import BaseSettings
from .vanilla import VanillaSettings

BASES: dict[str, type[BaseSettings]] = {
    "d2f": D2FSettings,
    "vanilla": VanillaSettings,
    "fast-dllm": FastDLLMSettings,
    "block-diffusion": BlockDiffusionSettings,
}
# Strategies that run lookahead branches over a base, with the settings they add to it.
LOOKAHEADS: dict[str, tuple[type, ...]] = {"lopa": (LookaheadSettings, BranchScore)}


def strategy_names() -> tuple[str, ...]:
    """What `strategy` may be."""
    return (*LOOKAHEADS, *BASES)


@dataclass(frozen=True)
class DecodeSettings:
    """Settings of every decode, whatever its strategy."""

    strategy: str = setting("lopa", "the decoding strategy", choices=strategy_names)
    base: str = setting(
        "d2f",
        "the strategy whose result is the anchor",
        choices=lambda: tuple(BASES),
        needs={"strategy": lambda: tuple(LOOKAHEADS)},
    )
    max_new_tokens: int | None = count(
        None,
        "token budget; vanilla and fast-dllm mask all of it from the start",
        shown="what fits, at most 256",
    )
    strict: bool = setting(
        False,
        "fail, rather than stop early, when a block fits no instance of the bundle, and, rather "
        "than run slower, when a CUDA graph cannot be captured",
    )


SHARED: tuple[type, ...] = (DecodeSettings, Sampler, PrecisionPolicy)


@dataclass(frozen=True)
class Declared:
    """A setting and the strategies that have it; no owners: every decode has it."""

    setting: Setting
    owners: tuple[str, ...]


def groups(strategy: str, base: str) -> tuple[type, ...]:
    """The dataclasses of settings in force; unknown names add none."""
    rules = [BASES[base]] if base in BASES else []
    return (*SHARED, *LOOKAHEADS.get(strategy, ()), *rules)


def declared() -> dict[str, list[Declared]]:
    """Every setting by name; strategies that declare it alike share an entry."""
    found: dict[str, list[Declared]] = {}
    for owners, group in _groups():
        for item in settings_of(group):
            entries = found.setdefault(item.name, [])
            for place, entry in enumerate(entries):
                if entry.setting == item:
                    entries[place] = Declared(item, (*entry.owners, *owners))
                    break
            else:
                entries.append(Declared(item, owners))
    return found


def owners_of(name: str) -> tuple[str, ...]:
    """The strategies that have a setting, in the registry's order; none: every decode has it."""
    return tuple(
        owner
        for owners, group in _groups()
        for owner in owners
        if any(item.name == name for item in settings_of(group))
    )


def _groups() -> Iterator[tuple[tuple[str, ...], type]]:
    yield (), DecodeSettings
    for name, added in LOOKAHEADS.items():
        yield from (((name,), group) for group in added)
    yield from (((name,), group) for name, group in BASES.items())
    yield from (((), group) for group in SHARED[1:])
