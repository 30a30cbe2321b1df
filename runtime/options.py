"""Decode options: what a user set, checked against a bundle, and the plan of one decode from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .contract import LopaError, misfit
from .decoder import Decoder
from .engines.protocol import DecodeState
from .manifest import BundleManifest, ModelInfo
from .precision import PrecisionPolicy
from .prompt import PromptError
from .sampling import Sampler
from .scoring import BranchScore
from .setting import Setting, listed, settings_of
from .strategies.lopa import Lookahead, LookaheadSettings
from .strategies.protocol import BaseSettings, Strategy
from .strategies.registry import BASES, LOOKAHEADS, DecodeSettings, declared, groups, owners_of

DEFAULT_NEW_TOKENS = 256

_NEEDS = {
    "full": (
        "needs a model trained with full attention, this {family} model was trained block-causal; "
        "use {others}, or a bundle of a Dream, DiffuCoder or LLaDA checkpoint"
    ),
    "block-causal": (
        "needs a model trained block-causal, this {family} model was trained with full attention; "
        "use {others}, or a bundle of an SDAR, Fast-dLLM v2 or LLaDA2 checkpoint"
    ),
}


@dataclass(frozen=True)
class Plan:
    """One decode with everything decided; equal ones can share a decoder."""

    strategy: Strategy
    lookahead: Lookahead
    sampler: Sampler
    precision: PrecisionPolicy
    strict: bool

    def decoder(self, engine: DecodeState, model: ModelInfo) -> Decoder:
        """Build the decoder."""
        return Decoder(
            engine,
            model,
            self.strategy,
            self.lookahead,
            self.sampler,
            self.precision,
            self.strict,
        )


class DecodeOptions:
    """Settings of one decode, given by name; None or absent takes the declared default.

    Attributes are the values in force: the given ones, else the defaults of the strategy. Raises
    LopaError for names that no strategy declares; types and ranges are checked by `check`.
    """

    def __init__(self, **given: Any) -> None:
        check_names(given)
        self.given = {name: value for name, value in given.items() if value is not None}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        in_force = self.in_force
        if name in in_force:
            return in_force[name]
        entries = declared().get(name)
        if entries is None:
            raise AttributeError(f"DecodeOptions has no setting {name!r}")
        return self.given.get(name, entries[0].setting.default)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DecodeOptions) and self.given == other.given

    def __hash__(self) -> int:
        return hash(frozenset(self.given.items()))

    def __repr__(self) -> str:
        return f"DecodeOptions({', '.join(f'{n}={v!r}' for n, v in self.given.items())})"

    def replace(self, **changes: Any) -> DecodeOptions:
        """The same options with some settings changed; None takes the default again."""
        return DecodeOptions(**{**self.given, **changes})

    @cached_property
    def in_force(self) -> dict[str, Any]:
        """Every setting that the strategy has, with its value."""
        return {
            item.name: getattr(group, item.name)
            for kind, group in self._groups.items()
            for item in settings_of(kind)
        }

    @cached_property
    def rules(self) -> str:
        """The base strategy in force."""
        first = DecodeSettings()
        strategy: str = self.given.get("strategy", first.strategy)
        return self.given.get("base", first.base) if _in(strategy, LOOKAHEADS) else strategy

    def check(self, manifest: BundleManifest) -> None:
        """Raise LopaError listing every setting that is wrong or that the bundle cannot serve."""
        check_types(self.given)
        wrong = {name: fault for name, fault in self._range_faults() if fault is not None}
        faults = [*wrong.values(), *unused_settings(self).values()]
        for kind, group in self._groups.items():
            if not any(item.name in wrong for item in settings_of(kind)):
                faults += self._group_faults(group, manifest)
        if faults:
            raise LopaError("; ".join(faults))

    def check_prompt(self, length: int, manifest: BundleManifest) -> None:
        """Raise PromptError when a prompt of `length` tokens needs more than the bundle holds."""
        if self.room(length, manifest) < 1:
            context = max(instance.context for instance in manifest.instances)
            raise PromptError(
                f"a prompt of {length} tokens leaves no room for an answer, the bundle holds "
                f"{context} tokens; shorten it or build with a larger --context"
            )
        faults = self._base.budget_faults(self.new_tokens(length, manifest), manifest.model)
        if faults:
            raise LopaError("; ".join(faults))
        plan = self.resolved(length, manifest)
        shapes = plan.strategy.shapes(length, plan.lookahead.branches + 1)
        fault = misfit(manifest.instances, shapes)
        if fault:
            raise PromptError(f"{self.strategy} on a prompt of {length} tokens {fault}")

    def block(self, model: ModelInfo) -> int:
        """Block size given, else that of the model's training."""
        return int(self.block_size or model.block_size)

    def new_tokens(self, prompt: int, manifest: BundleManifest) -> int:
        """Token budget in force for a prompt of `prompt` tokens."""
        return self.max_new_tokens or min(DEFAULT_NEW_TOKENS, self.room(prompt, manifest))

    def least_new_tokens(self, model: ModelInfo) -> int:
        """The smallest token budget: one block where only whole ones are added."""
        return self._base.least_new_tokens(model)

    def room(self, prompt: int, manifest: BundleManifest) -> int:
        """The largest token budget that the context holds behind a prompt of `prompt` tokens."""
        context = max(instance.context for instance in manifest.instances)
        return self._base.room(prompt, context, manifest.model)

    def resolved(self, prompt: int, manifest: BundleManifest) -> Plan:
        """Decide everything that depends on the prompt's length or the bundle."""
        score = self._groups.get(BranchScore, BranchScore())
        lookahead = self._groups.get(LookaheadSettings, LookaheadSettings(lookahead=0))
        policy = self._groups[PrecisionPolicy]
        return Plan(
            strategy=self._base.strategy(
                manifest.model,
                self.new_tokens(prompt, manifest),
                alone=LookaheadSettings not in self._groups,
            ),
            lookahead=lookahead.rules(score, manifest),
            sampler=self._groups[Sampler],
            precision=PrecisionPolicy(
                policy.precision_policy, policy.precision_margin, self._base.fill_threshold
            ),
            strict=self.strict,
        )

    @cached_property
    def _groups(self) -> dict[type, Any]:
        """The dataclasses of settings in force, with the given values."""
        strategy = self.given.get("strategy", DecodeSettings().strategy)
        found = {}
        for group in groups(strategy, self.rules):
            names = [item.name for item in settings_of(group)]
            found[group] = group(**{n: self.given[n] for n in names if n in self.given})
        return found

    @property
    def _base(self) -> BaseSettings:
        """The settings of the base strategy in force."""
        base: BaseSettings = self._groups[BASES[self.rules]]
        return base

    def _range_faults(self) -> Iterable[tuple[str, str | None]]:
        for name, value in self.given.items():
            who = f"{self.rules} expects" if self.rules in owners_of(name) else "expected"
            yield name, self._declaration(name).range_fault(value, who)

    def _declaration(self, name: str) -> Setting:
        for group in self._groups:
            for item in settings_of(group):
                if item.name == name:
                    return item
        return declared()[name][0].setting

    def _group_faults(self, group: Any, manifest: BundleManifest) -> list[str]:
        model = manifest.model
        if self.rules not in BASES or type(group) is not BASES[self.rules]:
            check = getattr(group, "faults", None)
            return [] if check is None else list(check(manifest))
        faults = [] if group.serves(model) else [_attention_fault(self.rules, model)]
        faults += group.faults(model)
        budget, least = self.given.get("max_new_tokens"), group.least_new_tokens(model)
        if budget is not None and 0 < budget < least:
            faults.append(f"max new tokens is {budget}, expected a whole block of {least} or more")
        elif budget is not None and budget > 0:
            faults += group.budget_faults(budget, model)
        return faults


def unused_settings(options: DecodeOptions) -> dict[str, str]:
    """Given settings that do nothing in this decode, and why."""
    found = {}
    for name in options.given:
        reason = _idle(options, name)
        if reason is not None:
            label = name.replace("_", " ")
            found[name] = f"{label} is for {reason} does not use it; leave it out"
    return found


def check_names(given: Iterable[str], kind: str = "setting", more: Sequence[str] = ()) -> None:
    """Raise LopaError for names that no strategy declares and that are not among `more`.

    `kind` is what the message calls them.
    """
    known = (*more, *declared())
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise LopaError(f"unknown {kind} {', '.join(unknown)}; known: {', '.join(known)}")


def check_types(given: Mapping[str, Any]) -> None:
    """Raise LopaError for settings whose value is of the wrong type."""
    known = declared()
    faults = (
        known[name][0].setting.type_fault(value)
        for name, value in given.items()
        if value is not None
    )
    found = [fault for fault in faults if fault is not None]
    if found:
        raise LopaError("; ".join(found))


def _idle(options: DecodeOptions, name: str) -> str | None:
    """Say who uses a setting and what was chosen instead, if this decode does not."""
    owners, rules, strategy = owners_of(name), options.rules, options.strategy
    if not _in(strategy, LOOKAHEADS) and rules not in BASES:  # nothing can be said
        return None
    chosen = strategy if set(owners) & set(LOOKAHEADS) else rules
    if owners and chosen not in owners:
        return f"{' or '.join(owners)}, {chosen}"
    for other, values in options._declaration(name).needs.items():
        reason = _idle(options, other)
        if reason is not None:
            return reason
        value, label = getattr(options, other), other.replace("_", " ")
        if value not in listed(values):
            return f"{label} {' or '.join(listed(values))}, {label} {value}"
    return None


def _in(name: Any, table: Mapping[str, Any]) -> bool:
    return isinstance(name, str) and name in table


def _attention_fault(base: str, model: ModelInfo) -> str:
    needed = BASES[base].trained_for
    *some, last = [name for name, group in BASES.items() if group.trained_for != needed]
    others = f"{', '.join(some)} or {last}" if some else last
    return f"{base} {_NEEDS[needed].format(family=model.family, others=others)}"
