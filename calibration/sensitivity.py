"""What each site costs when it alone is quantised, and which sites are kept higher for it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..graphs.targets.onnxruntime_integers import use_integer_kernels
from ..graphs.weight_file import inline_pieces
from .fidelity import Fidelity, Predicted, compare
from .plan import SitePlan
from .recipe import Recipe
from .rewrite import rewrite
from .session import open_session
from .sites import StepGraph
from .states import States

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Sensitivity:
    """One site: its products' signal-to-noise ratio and the predictions when it alone changes."""

    site: str
    snr_db: float | None
    fidelity: Fidelity

    def data(self) -> dict[str, Any]:
        """JSON data."""
        return {"snr_db": self.snr_db, **asdict(self.fidelity)}


def quantised_fidelity(
    graph: StepGraph,
    plans: Sequence[SitePlan],
    embedding: str,
    states: States,
    references: Sequence[Predicted],
) -> Fidelity:
    """Quantise sites in memory, run the steps as ONNX Runtime will, compare with the references."""
    rewritten = rewrite(graph, plans, embedding)
    inline_pieces(rewritten.model, rewritten.pieces)
    use_integer_kernels(rewritten.model)
    session = open_session(rewritten.model, graph.folder)
    return compare(session, states, references)


def measure_sites(
    graph: StepGraph,
    plans: Sequence[SitePlan],
    states: States,
    references: Sequence[Predicted],
    file: Path,
    progress: Progress,
) -> list[Sensitivity]:
    """Quantise one site after the other alone; what `file` has is not measured again."""
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    found = []
    for index, plan in enumerate(plans):
        progress("quantising one site at a time", index, len(plans))
        name, key = plan.site.name, _key(plan, states)
        if known.get(name, {}).get("plan") != key:
            fidelity = quantised_fidelity(graph, [plan], "model", states, references)
            known[name] = {"plan": key, **Sensitivity(name, plan.snr_db, fidelity).data()}
            draft = file.with_suffix(".draft")
            draft.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
            os.replace(draft, file)
        entry = known[name]
        numbers = {key: entry[key] for key in ("rows", "agreement", "decisions", "drift")}
        found.append(Sensitivity(name, plan.snr_db, Fidelity(**numbers)))
    return found


def _key(plan: SitePlan, states: States) -> str:
    """What the measurement of a site depends on."""
    precisions = ",".join(f"{name}={value}" for name, value in plan.precisions.items())
    return f"{precisions} {plan.method} {plan.largest} {plan.exponent} {len(states)} states"


def raise_sites(
    plans: Sequence[SitePlan],
    sensitivities: Sequence[Sensitivity],
    recipe: Recipe,
    measure: Callable[[Sequence[SitePlan]], Fidelity],
    progress: Progress,
) -> tuple[list[SitePlan], Fidelity]:
    """Give the most harmful sites float activations until `measure` finds what the recipe wants.

    Without sensitivities the noisiest go first. Their number is found by halving, as more of them
    change fewer tokens; if not even all of them do, the recipe is followed. Returns the plans and
    their fidelity.
    """
    alone = {item.site: item for item in sensitivities}

    def harm(index: int) -> float:
        measured = alone.get(plans[index].site.name)
        return plans[index].noise if measured is None else measured.fidelity.drift

    order = [index for index, plan in enumerate(plans) if plan.integer]
    order.sort(key=harm, reverse=True)
    found: dict[int, tuple[list[SitePlan], Fidelity]] = {}

    def enough(count: int) -> bool:
        """Whether raising `count` sites does; kept in `found`."""
        progress(f"measuring with {count} sites kept higher", 0, 1)
        raised = set(order[:count])
        chosen = [
            plan.raised(_reason(plan, alone)) if index in raised else plan
            for index, plan in enumerate(plans)
        ]
        fidelity = measure(chosen)
        found[count] = chosen, fidelity
        return fidelity.agreement >= recipe.agreement and fidelity.drift <= recipe.drift

    least, most = 0, len(order)
    if enough(least) or not enough(most):
        return found[0]
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
