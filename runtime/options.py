"""Decode options: what a user may set, checked against a bundle, turned into a decoder."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .contract import LopaError
from .decoder import Decoder
from .engines.protocol import Engine
from .fit import misfit, steps_needed
from .manifest import BundleManifest, ModelInfo
from .prompt import PromptError
from .sampling import Sampler
from .scoring import BranchScore
from .strategies.choice import BASES, CHOICES, STRATEGIES, attention_fault, make_strategy
from .strategies.lopa import Lookahead

MAX_COUNT = 1_000_000  # of tokens, steps, sizes
DEFAULT_LOOKAHEAD = 4


@dataclass(frozen=True)
class DecodeOptions:
    """Settings of one decode; None takes the bundle's or the strategy's default."""

    strategy: str = "lopa"
    base: str = "d2f"  # of lopa: the strategy whose result is the anchor
    lookahead: int | None = None  # lookahead branches; default: the bundle's, at most 4
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

    def check(self, manifest: BundleManifest) -> None:
        """Raise LopaError listing every setting that is wrong or that the bundle cannot serve."""
        faults = []
        for name, value, known in (
            ("strategy", self.strategy, STRATEGIES),
            ("base", self.base, BASES),
            ("window attention", self.window_attention, (None, "full", "block-causal")),
        ):
            if value not in known:
                faults.append(f"{name} is {value!r}, expected one of {[k for k in known if k]}")
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
        """List choices that the base strategy does not offer."""
        if self.rules not in BASES:
            return []
        faults = []
        for name, offered in CHOICES.items():
            value, known = getattr(self, name), offered[self.rules]
            if value is not None and value not in known:
                faults.append(f"{name} is {value!r}, {self.rules} expects one of {sorted(known)}")
        if self.factor is not None and self.fill not in (None, "factor"):
            faults.append(f"factor is {self.factor}, fill {self.fill!r} has none")
        return faults

    def _bundle_faults(self, manifest: BundleManifest) -> list[str]:
        """List what the bundle or its model cannot serve."""
        faults = []
        widest = max(instance.branches for instance in manifest.instances) - 1
        if self.lookahead is not None and not 0 <= self.lookahead <= widest:
            faults.append(
                f"lookahead is {self.lookahead}, the bundle has {widest} lookahead branches; "
                f"build with --lookahead {self.lookahead} for more"
            )
        if self.rules not in BASES:
            return faults
        if not (self.rules == "d2f" and self.window_attention):
            fault = attention_fault(self.rules, manifest.model)
            faults += [fault] if fault else []
        block = self.block(manifest.model)
        small, new = self.small_block_size or block, self.max_new_tokens or block
        whole_blocks = self.rules == "d2f"
        if self.rules == "block-diffusion":
            if small > 0 and block > 0 and block % small:
                faults.append(f"small block size is {small}, expected a divisor of {block}")
            whole_blocks = bool(manifest.model.logit_shift) and self.cache != "none"
        lookahead = self.resolved_lookahead(widest)
        room = max((i.window for i in manifest.instances if i.branches > lookahead), default=0)
        if self.rules == "d2f" and 0 <= lookahead <= widest and room < block:
            faults.append(
                f"block size is {block}, the bundle's window for {lookahead + 1} branches holds "
                f"{room}; build with --window {block} or more"
            )
        if whole_blocks and 0 < new < block:
            faults.append(f"max new tokens is {new}, expected a whole block of {block} or more")
        return faults

    def check_prompt(self, length: int, manifest: BundleManifest) -> None:
        """Raise PromptError when a prompt of `length` tokens needs more than the bundle holds."""
        instances = manifest.instances
        need = self.block(manifest.model)
        limit = max(instance.context for instance in instances)
        if self.rules != "d2f":
            need = self.new_tokens(length, manifest)
        if self.rules in ("d2f", "vanilla"):
            limit = min(limit, max(instance.window for instance in instances))
        if need < 1 or length + need > limit:
            raise PromptError(
                f"the prompt has {length} tokens and needs {max(need, 1)} more for its first "
                f"step, the bundle holds {limit}; shorten it or build with a larger "
                "--context / --prefill"
            )
        steps = steps_needed(self.resolved(length, manifest), manifest.model, length)
        fault = misfit(instances, steps)
        if fault:
            raise PromptError(f"{self.strategy} on a prompt of {length} tokens {fault}")

    def block(self, model: ModelInfo) -> int:
        """Block size in force, but for vanilla, where it defaults to all new tokens."""
        return self.block_size or model.block_size

    def new_tokens(self, prompt: int, manifest: BundleManifest) -> int:
        """Token budget in force for a prompt of `prompt` tokens."""
        context = max(instance.context for instance in manifest.instances)
        if self.rules == "block-diffusion":
            block = self.block(manifest.model)
            context = (context - 1) // block * block
        return self.max_new_tokens or min(256, context - prompt)

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
        default = {name: offered[self.rules][0] for name, offered in CHOICES.items()}
        return replace(
            self,
            lookahead=self.resolved_lookahead(widest),
            block_size=block,
            small_block_size=self.small_block_size or block,
            max_new_tokens=new_tokens,
            fill=self.fill or ("factor" if self.factor else default["fill"]),
            window_attention=attention,
            cache=self.cache or default["cache"],
            steps=self.steps or new_tokens,
            block_steps=self.block_steps or block,
            schedule=self.schedule or ("dream" if model.logit_shift else "llada"),
            stop=self.stop or default["stop"],
        )

    def decoder(self, engine: Engine, model: ModelInfo) -> Decoder:
        """Build the decoder of resolved options."""
        assert self.lookahead is not None
        lookahead = Lookahead(self.lookahead, self.branch_score(), self.anchor_wins)
        strategy = make_strategy(self, model)
        return Decoder(engine, model, strategy, lookahead, self.sampler(), self.strict)

    def branch_score(self) -> BranchScore:
        """The branch score."""
        return BranchScore(self.score, self.score_alpha, self.score_fraction, self.score_window)

    def sampler(self) -> Sampler:
        """The token sampler."""
        return Sampler(self.temperature, self.top_k, self.top_p, self.measure)
