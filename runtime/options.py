"""Decode options: what a user may set, checked against a bundle, turned into a decoder."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any

from .contract import LopaError
from .decoder import Decoder
from .engines.protocol import Engine
from .fit import misfit, steps_needed
from .manifest import BundleManifest, ModelInfo
from .precision import DEFAULT_MARGIN, POLICIES, PrecisionPolicy
from .prompt import PromptError
from .sampling import Sampler
from .scoring import BranchScore
from .strategies.choice import (
    BASES,
    CHOICES,
    STRATEGIES,
    attention_fault,
    make_strategy,
    unused_settings,
)
from .strategies.lopa import DEFAULT_CONFIRM, SHAPES, Lookahead

MAX_COUNT = 1_000_000  # of tokens, steps, sizes
DEFAULT_LOOKAHEAD = 4
DEFAULT_NEW_TOKENS = 256


@dataclass(frozen=True)
class DecodeOptions:
    """Settings of one decode; None takes the bundle's or the strategy's default."""

    strategy: str = "lopa"
    base: str = "d2f"  # of lopa: the strategy whose result is the anchor
    lookahead: int | None = None  # lookahead branches; default: the bundle's, at most 4
    lookahead_shape: str = "single"  # what each adds to the anchor: "single" | "nested"
    confirm: float = DEFAULT_CONFIRM  # of "nested": least probability that confirms a token
    block_size: int | None = None  # default: of the model's training; vanilla: all new tokens
    small_block_size: int | None = None  # block-diffusion: filled at a time; default: the block
    max_new_tokens: int | None = None  # default: what fits, at most 256
    add_threshold: float = 0.1  # decoded share of the last block at which one is added
    complete_threshold: float = 0.95  # share at which the next block may be forced
    fill: str | None = None  # "threshold" | "factor" | "quota" | "sequential", as the base offers
    confidence: float = 0.9  # positions above it are filled in parallel
    factor: float | None = None  # of fill "factor", which it implies; default 1
    window_attention: str | None = None  # "full" | "block-causal"; default: the strategy's
    cache: str | None = None  # "none" | "prefix" | "dual", as the base offers
    score: str = "mean_confidence"
    score_alpha: float | None = None
    score_fraction: float = 0.5
    score_window: int = 8  # consecutive masks averaged by "sliding_minimum"
    measure: str = "probability"  # ranks positions: "probability" | "margin" | "entropy"
    anchor_wins: bool = False
    steps: int | None = None  # vanilla, fast-dllm: in all; default one per new token
    block_steps: int | None = None  # block-diffusion: of each block; default one per position
    schedule: str | None = None  # counts per step: "dream" | "llada"; default: by logit shift
    precision_policy: str = "full"  # of bundles that hold two: "full" | "fast" | "auto"
    precision_margin: float = DEFAULT_MARGIN  # of "auto": what is nearer counts as undecided
    stop: str | None = None  # what a stop token ends: "token" | "block" | "none"
    revision: str = "v1"  # of the published loop: "v1" | "legacy"
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    strict: bool = False

    @property
    def rules(self) -> str:
        """The base strategy in force."""
        return self.base if self.strategy == "lopa" else self.strategy

    @property
    def fill_rule(self) -> str | None:
        """The fill in force; None for an unknown base."""
        if self.fill is None and self.factor is not None and "factor" in self._offered("fill"):
            return "factor"
        return self.fill or next(iter(self._offered("fill")), None)

    def check(self, manifest: BundleManifest) -> None:
        """Raise LopaError listing every setting that is wrong or that the bundle cannot serve."""
        faults = list(_type_faults(self))
        if faults:
            raise LopaError("; ".join(faults))
        for name, value, known in (
            ("strategy", self.strategy, STRATEGIES),
            ("base", self.base, BASES),
            ("lookahead shape", self.lookahead_shape, SHAPES),
            ("window attention", self.window_attention, (None, "full", "block-causal")),
            ("precision policy", self.precision_policy, POLICIES),
        ):
            if value not in known:
                listed = ", ".join(choice for choice in known if choice)
                faults.append(f"{name} is {value!r}, expected one of: {listed}")
        faults += self._choice_faults()
        for name, number in (
            ("block size", self.block_size),
            ("small block size", self.small_block_size),
            ("max new tokens", self.max_new_tokens),
            ("steps", self.steps),
            ("block steps", self.block_steps),
        ):
            if number is not None and number < 1:
                faults.append(f"{name} is {number}, expected 1 or more")
            if number is not None and number > MAX_COUNT:
                faults.append(f"{name} is {number}, expected at most {MAX_COUNT}")
        for name, share in (
            ("add threshold", self.add_threshold),
            ("complete threshold", self.complete_threshold),
            ("confidence", self.confidence),
            ("confirm", self.confirm),
            ("precision margin", self.precision_margin),
        ):
            if not 0 <= share <= 1:
                faults.append(f"{name} is {share}, expected a value from 0 to 1")
        if self.factor is not None and not 0 < self.factor < float("inf"):
            faults.append(f"factor is {self.factor}, expected more than 0")
        faults += self._bundle_faults(manifest)
        faults += self.branch_score().faults()
        faults += self.sampler().faults(manifest.model.candidates)
        if faults:
            raise LopaError("; ".join(faults))

    def _choice_faults(self) -> list[str]:
        """List choices that the base strategy does not offer, and settings it does not use."""
        if self.strategy not in STRATEGIES or self.rules not in BASES:
            return []
        faults = list(unused_settings(self).values())
        for name in CHOICES:
            value, known = getattr(self, name), self._offered(name)
            if known and value is not None and value not in known:
                choices = f"one of: {', '.join(known)}" if len(known) > 1 else known[0]
                faults.append(f"{name} is {value!r}, {self.rules} expects {choices}")
        return faults

    def _offered(self, name: str) -> tuple[str, ...]:
        """What the base strategy offers for a setting of CHOICES, its default first."""
        return CHOICES[name].get(self.rules, ())

    def _bundle_faults(self, manifest: BundleManifest) -> list[str]:
        """List what the bundle or its model cannot serve."""
        faults = []
        widest = max(instance.branches for instance in manifest.instances) - 1
        if self.lookahead is not None and not 0 <= self.lookahead <= widest:
            faults.append(
                f"lookahead is {self.lookahead}, the bundle has {widest} lookahead branches; "
                f"build with --lookahead {self.lookahead} for more"
            )
        if self.precision_policy in POLICIES[1:] and manifest.fast is None:
            faults.append(
                f"precision policy is {self.precision_policy!r}, the bundle holds one precision; "
                "build with --fast-model (a folder made by lopa calibrate) for two"
            )
        if self.rules not in BASES:
            return faults
        if not (self.rules == "d2f" and self.window_attention):
            fault = attention_fault(self.rules, manifest.model)
            faults += [fault] if fault else []
        block = self.block(manifest.model)
        small, new = self.small_block_size or block, self.max_new_tokens or block
        if self.rules == "block-diffusion" and small > 0 and block > 0 and block % small:
            faults.append(f"small block size is {small}, expected a divisor of {block}")
        if 0 < new < self.least_new_tokens(manifest.model):
            faults.append(f"max new tokens is {new}, expected a whole block of {block} or more")
        return faults

    def check_prompt(self, length: int, manifest: BundleManifest) -> None:
        """Raise PromptError when a prompt of `length` tokens needs more than the bundle holds."""
        if self.room(length, manifest) < 1:
            context = max(instance.context for instance in manifest.instances)
            raise PromptError(
                f"a prompt of {length} tokens leaves no room for an answer, the bundle holds "
                f"{context} tokens; shorten it or build with a larger --context"
            )
        steps = steps_needed(self.resolved(length, manifest), manifest.model, length)
        fault = misfit(manifest.instances, steps)
        if fault:
            raise PromptError(f"{self.strategy} on a prompt of {length} tokens {fault}")

    def block(self, model: ModelInfo) -> int:
        """Block size in force, but for vanilla, where it defaults to all new tokens."""
        return self.block_size or model.block_size

    def new_tokens(self, prompt: int, manifest: BundleManifest) -> int:
        """Token budget in force for a prompt of `prompt` tokens."""
        return self.max_new_tokens or min(DEFAULT_NEW_TOKENS, self.room(prompt, manifest))

    def least_new_tokens(self, model: ModelInfo) -> int:
        """The smallest token budget: one block where only whole ones are added."""
        whole = self.rules == "d2f" or self._stores_ahead(model)
        return self.block(model) if whole else 1

    def room(self, prompt: int, manifest: BundleManifest) -> int:
        """The largest token budget that the context holds behind a prompt of `prompt` tokens."""
        context = max(instance.context for instance in manifest.instances)
        if self.rules != "block-diffusion":
            return context - prompt
        block = self.block(manifest.model)
        begun = prompt % block if self._stores_ahead(manifest.model) else 0
        return context // block * block - prompt + begun

    def _stores_ahead(self, model: ModelInfo) -> bool:
        """Whether the budget counts whole blocks, that of the prompt's last tokens included."""
        return self.rules == "block-diffusion" and bool(model.logit_shift) and self.cache != "none"

    def resolved_lookahead(self, widest: int) -> int:
        """Lookahead branches in force for a bundle that has `widest`; only lopa runs any."""
        if self.strategy != "lopa":
            return 0
        return min(DEFAULT_LOOKAHEAD, widest) if self.lookahead is None else self.lookahead

    def resolved(self, prompt: int, manifest: BundleManifest) -> DecodeOptions:
        """Fill in every default that depends on the prompt length or the bundle."""
        model = manifest.model
        widest = max(instance.branches for instance in manifest.instances) - 1
        attention = self.window_attention
        if attention is None:
            attention = "block-causal" if self.strategy == "d2f" else "full"
        new_tokens = self.new_tokens(prompt, manifest)
        whole = self.rules == "vanilla" and self.block_size is None
        block = new_tokens if whole else self.block(model)
        return replace(
            self,
            lookahead=self.resolved_lookahead(widest),
            block_size=block,
            small_block_size=self.small_block_size or block,
            max_new_tokens=new_tokens,
            fill=self.fill_rule,
            window_attention=attention,
            cache=self.cache or self._offered("cache")[0],
            steps=self.steps or new_tokens,
            block_steps=self.block_steps or block,
            schedule=self.schedule or ("dream" if model.logit_shift else "llada"),
            stop=self.stop or self._offered("stop")[0],
        )

    def decoder(self, engine: Engine, model: ModelInfo) -> Decoder:
        """Build the decoder of resolved options."""
        assert self.lookahead is not None
        lookahead = Lookahead(
            self.lookahead,
            self.branch_score(),
            self.anchor_wins,
            self.lookahead_shape,
            self.confirm,
        )
        strategy = make_strategy(self, model)
        return Decoder(
            engine, model, strategy, lookahead, self.sampler(), self.precision(), self.strict
        )

    def precision(self) -> PrecisionPolicy:
        """The choice between the two graphs of a bundle."""
        threshold = self.confidence if self.fill_rule == "threshold" else None
        return PrecisionPolicy(self.precision_policy, self.precision_margin, threshold)

    def branch_score(self) -> BranchScore:
        """The branch score."""
        return BranchScore(self.score, self.score_alpha, self.score_fraction, self.score_window)

    def sampler(self) -> Sampler:
        """The token sampler."""
        return Sampler(self.temperature, self.top_k, self.top_p, self.measure)


SETTINGS = tuple(field.name for field in fields(DecodeOptions))


def check_names(
    given: Iterable[str], kind: str = "setting", known: Sequence[str] = SETTINGS
) -> None:
    """Raise LopaError for names that are not `known`; `kind` is what the message calls them."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise LopaError(f"unknown {kind} {', '.join(unknown)}; known: {', '.join(known)}")


def with_settings(options: DecodeOptions, settings: Mapping[str, Any]) -> DecodeOptions:
    """`options` with some fields replaced; raises LopaError for unknown names and wrong types."""
    check_names(settings)
    changed = replace(options, **settings)
    faults = list(_type_faults(changed))
    if faults:
        raise LopaError("; ".join(faults))
    return changed


def _type_faults(options: DecodeOptions) -> Iterator[str]:
    """Name every setting of the wrong type."""
    hints = typing.get_type_hints(DecodeOptions)
    for field in fields(DecodeOptions):
        value = getattr(options, field.name)
        kinds = typing.get_args(hints[field.name]) or (hints[field.name],)
        if not any(_is(value, kind) for kind in kinds):
            name = field.name.replace("_", " ")
            yield f"{name} is {value!r}, expected {KIND_NAMES[kinds[0]]}"


def _is(value: Any, kind: type) -> bool:
    """Whether `value` serves as a setting of type `kind`; NumPy's numbers do."""
    if kind in (int, float):
        numeric = Integral if kind is int else Real
        return isinstance(value, numeric) and not isinstance(value, bool)
    return isinstance(value, kind)


KIND_NAMES = {bool: "True or False", float: "a number", int: "a whole number", str: "a name"}
