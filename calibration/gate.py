"""Which sites are kept higher so that the quantised model decodes like the original.

Single steps are not enough: their errors reach later steps through the cache, and one changed token
changes what follows it. So the prompts are decoded with the quantised graph too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from ..graphs.targets.onnxruntime.integers import use_integer_kernels
from ..graphs.weight_file import write_pieces
from ..runtime.engines.onnxruntime.program import OnnxRuntimeProgram
from ..runtime.manifest import BundleManifest
from .cache import CachePlan
from .fidelity import Fidelity, Predicted, compare, same_tokens
from .plan import SitePlan
from .progress import Progress
from .recipe import Recipe
from .rewrite import rewrite
from .sensitivity import Sensitivity
from .session import open_session
from .sites import StepGraph
from .states import States
from .trajectories import Decodes

NOISES = 2.0  # standard errors by which decodes may fall short of the recipe

Pair = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Kept:
    """What a quantised model keeps of the original.

    `steps`: on recorded steps. `tokens`: share of places of the decodes with the same token, what
    one answer has and the other lacks counted as different; None when the steps had failed already.
    `noise`: its standard error. A token that changes takes the rest of its answer along, so that a
    few answers make the share.
    """

    steps: Fidelity
    tokens: float | None = None
    noise: float = 0.0

    def reaches(self, recipe: Recipe) -> bool:
        """Whether it is what the recipe wants."""
        return (
            reached_steps(self.steps, recipe)
            and self.tokens is not None
            and self.tokens + NOISES * self.noise >= recipe.tokens
        )


def reached_steps(found: Fidelity, recipe: Recipe) -> bool:
    """Whether the steps alone are what the recipe wants."""
    return found.agreement >= recipe.agreement and found.drift <= recipe.drift


@dataclass(frozen=True)
class Gate:
    """The steps and decodes that a quantised model is measured on, and the original's results.

    `manifest` states the dtype of the quantised model's cache.
    """

    graph: StepGraph
    manifest: BundleManifest
    embedding: str  # precision of the token table
    cache: CachePlan | None  # None: in the model's dtype
    states: States
    references: Sequence[Predicted]
    decodes: Decodes
    answers: Sequence[tuple[int, ...]]
    work: Path

    def measure(self, plans: Sequence[SitePlan], recipe: Recipe, progress: Progress) -> Kept:
        """Write the quantised graph, run the steps and, if they are near enough, the decodes."""
        with tempfile.TemporaryDirectory(dir=self.work, prefix="trial-") as name:
            folder = Path(name)
            rewritten = rewrite(self.graph, plans, self.embedding, self.cache)
            file = folder / self.manifest.graph.file
            write_pieces(rewritten.model, rewritten.pieces, file, folder / "weights.data")
            use_integer_kernels(rewritten.model)
            onnx.save(rewritten.model, file)
            del rewritten
            steps = compare(
                open_session(onnx.load(file, load_external_data=False), folder),
                self.states if self.cache is None else map(self.cache.feeds, self.states),
                self.references,
            )
            if not reached_steps(steps, recipe):
                return Kept(steps)
            return Kept(steps, *same_tokens(list(self._pairs(folder, progress))))

    def _pairs(self, folder: Path, progress: Progress) -> Iterator[Pair]:
        engine = OnnxRuntimeProgram(folder, self.manifest).decode_state()
        for number, expected in enumerate(self.answers):
            progress("decoding with the quantised model", number, len(self.answers))
            yield expected, self.decodes.run(number, engine, self.manifest)


def raise_sites(
    plans: Sequence[SitePlan],
    sensitivities: Sequence[Sensitivity],
    recipe: Recipe,
    measure: Callable[[Sequence[SitePlan]], Kept],
    progress: Progress,
) -> tuple[list[SitePlan], Kept]:
    """Give the most harmful sites float activations until `measure` finds what the recipe wants.

    Without sensitivities the noisiest go first. Their number is found by halving, as more of them
    change fewer tokens. If all of them do not reach it, they stay raised when only the decodes
    differ; where the steps do, activations are not to blame and the recipe is followed. Returns the
    plans and what they keep.
    """
    alone = {item.site: item for item in sensitivities}

    def harm(index: int) -> float:
        measured = alone.get(plans[index].site.name)
        return plans[index].noise if measured is None else measured.fidelity.drift

    order = [index for index, plan in enumerate(plans) if plan.integer]
    order.sort(key=harm, reverse=True)
    found: dict[int, tuple[list[SitePlan], Kept]] = {}

    def enough(count: int) -> bool:
        """Whether raising `count` sites does; kept in `found`."""
        progress(f"measuring with {count} sites kept higher", 0, 1)
        raised = set(order[:count])
        chosen = [
            plan.raised(_reason(plan, alone)) if index in raised else plan
            for index, plan in enumerate(plans)
        ]
        kept = measure(chosen)
        found[count] = chosen, kept
        return kept.reaches(recipe)

    least, most = 0, len(order)
    if enough(least) or not order:
        return found[least]
    if not enough(most):
        return found[most if reached_steps(found[most][1].steps, recipe) else least]
    while most - least > 1:
        middle = (least + most) // 2
        if enough(middle):
            most = middle
        else:
            least = middle
    return found[most]


def _reason(plan: SitePlan, alone: Mapping[str, Sensitivity]) -> str:
    noise = "no noise" if plan.snr_db is None else f"signal to noise {plan.snr_db:.1f} dB"
    found = alone.get(plan.site.name)
    if found is None:
        return noise
    changed, drift = 1 - found.fidelity.agreement, found.fidelity.drift
    return f"alone it changes {changed:.2%} of the tokens and drifts {drift:.5f} nats, {noise}"
