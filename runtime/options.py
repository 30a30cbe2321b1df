"""Decode options: what a user may set, checked against a bundle, turned into a decoder."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .contract import Instance, LopaError
from .decoder import Decoder
from .engines.protocol import Engine
from .manifest import BundleManifest, ModelInfo
from .prompt import PromptError
from .sampling import Sampler
from .scoring import BranchScore
from .strategies.d2f import D2F, block_count
from .strategies.lopa import Lookahead
from .strategies.protocol import Strategy
from .strategies.vanilla import Vanilla

STRATEGIES = ("lopa", "d2f", "vanilla")
DEFAULT_LOOKAHEAD = 4


@dataclass(frozen=True)
class DecodeOptions:
    """Settings of one decode; None takes the bundle's or the strategy's default."""

    strategy: str = "lopa"
    lookahead: int | None = None  # lookahead branches; default: the bundle's, at most 4
    block_size: int | None = None  # default: what the model was trained with
    max_new_tokens: int | None = None  # default: what fits, at most 256
    add_threshold: float = 0.1  # decoded share of the last block at which one is added
    complete_threshold: float = 0.95  # share at which the next block may be forced
    confidence: float = 0.9  # positions above it are filled in parallel
    window_attention: str | None = None  # "full" | "block-causal"; default: the strategy's
    score: str = "mean_confidence"
    score_alpha: float | None = None
    score_fraction: float = 0.5
    measure: str = "probability"  # ranks positions: "probability" | "margin" | "entropy"
    anchor_wins: bool = False
    steps: int | None = None  # vanilla: default one per new token
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    strict: bool = False

    def check(self, manifest: BundleManifest) -> None:
        """Raise LopaError listing every setting that is wrong or that the bundle cannot serve."""
        faults = []
        for name, value, known in (
            ("strategy", self.strategy, STRATEGIES),
            ("window attention", self.window_attention, (None, "full", "block-causal")),
        ):
            if value not in known:
                faults.append(f"{name} is {value!r}, expected one of {[k for k in known if k]}")
        for name, number in (
            ("block size", self.block_size),
            ("max new tokens", self.max_new_tokens),
            ("steps", self.steps),
        ):
            if number is not None and number < 1:
                faults.append(f"{name} is {number}, expected 1 or more")
        for name, share in (
            ("add threshold", self.add_threshold),
            ("complete threshold", self.complete_threshold),
            ("confidence", self.confidence),
        ):
            if not 0 <= share <= 1:
                faults.append(f"{name} is {share}, expected a value from 0 to 1")
        widest = max(instance.branches for instance in manifest.instances) - 1
        if self.lookahead is not None and not 0 <= self.lookahead <= widest:
            faults.append(
                f"lookahead is {self.lookahead}, the bundle has {widest} lookahead branches; "
                f"build with --lookahead {self.lookahead} for more"
            )
        faults += self.branch_score().faults()
        faults += self.sampler().faults(manifest.model.candidates)
        if faults:
            raise LopaError("; ".join(faults))

    def check_prompt(self, length: int, manifest: BundleManifest) -> None:
        """Raise PromptError when the first step of a prompt of `length` tokens fits no instance."""
        block = self.block(manifest.model)
        if self.strategy == "vanilla":
            block = self.new_tokens(length, manifest.instances)
        context = max(instance.context for instance in manifest.instances)
        window = max(instance.window for instance in manifest.instances)
        limit = min(context, window)
        if block < 1 or length + block > limit:
            raise PromptError(
                f"the prompt has {length} tokens and needs {max(block, 1)} more for its first "
                f"step, the bundle holds {limit}; shorten it or build with a larger "
                "--context / --prefill"
            )

    def block(self, model: ModelInfo) -> int:
        """Block size in force."""
        return self.block_size or model.block_size

    def new_tokens(self, prompt: int, instances: tuple[Instance, ...]) -> int:
        """Token budget in force for a prompt of `prompt` tokens."""
        context = max(instance.context for instance in instances)
        return self.max_new_tokens or min(256, context - prompt)

    def resolved(self, prompt: int, manifest: BundleManifest) -> DecodeOptions:
        """Fill in every default that depends on the prompt length or the bundle."""
        model = manifest.model
        widest = max(instance.branches for instance in manifest.instances) - 1
        lookahead = self.lookahead
        if lookahead is None:
            lookahead = min(DEFAULT_LOOKAHEAD, widest)
        attention = self.window_attention
        if attention is None:
            attention = "block-causal" if self.strategy == "d2f" else "full"
        new_tokens = self.new_tokens(prompt, manifest.instances)
        return replace(
            self,
            lookahead=lookahead if self.strategy == "lopa" else 0,
            block_size=self.block(model),
            max_new_tokens=new_tokens,
            window_attention=attention,
            steps=self.steps or new_tokens,
        )

    def decoder(self, engine: Engine, model: ModelInfo) -> Decoder:
        """Build the decoder of resolved options."""
        assert self.lookahead is not None
        lookahead = Lookahead(self.lookahead, self.branch_score(), self.anchor_wins)
        return Decoder(engine, model, self._strategy(), lookahead, self.sampler(), self.strict)

    def _strategy(self) -> Strategy:
        assert self.block_size is not None
        assert self.max_new_tokens is not None
        assert self.steps is not None
        if self.strategy == "vanilla":
            return Vanilla(self.max_new_tokens, self.steps)
        return D2F(
            block_size=self.block_size,
            max_blocks=block_count(self.max_new_tokens, self.block_size),
            add_threshold=self.add_threshold,
            complete_threshold=self.complete_threshold,
            confidence=self.confidence,
            block_causal=self.window_attention == "block-causal",
        )

    def branch_score(self) -> BranchScore:
        """The branch score."""
        return BranchScore(self.score, self.score_alpha, self.score_fraction)

    def sampler(self) -> Sampler:
        """The token sampler."""
        return Sampler(self.temperature, self.top_k, self.top_p, self.measure)
