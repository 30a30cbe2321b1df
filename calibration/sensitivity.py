"""What each site costs when it alone is quantised."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..graphs.targets.onnxruntime.integers import use_integer_kernels
from ..graphs.weight_file import inline_pieces
from ..runtime.staging import write_whole
from .fidelity import Fidelity, Predicted, compare
from .plan import SitePlan
from .progress import Progress
from .rewrite import rewrite
from .session import open_session
from .sites import StepGraph
from .states import States


@dataclass(frozen=True)
class Sensitivity:
    """One site: its products' signal-to-noise ratio and the predictions when it alone changes."""

    site: str
    snr_db: float | None
    fidelity: Fidelity

    def data(self) -> dict[str, Any]:
        """JSON data."""
        return {"snr_db": self.snr_db, **asdict(self.fidelity)}


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
            fidelity = _alone(graph, plan, states, references)
            known[name] = {"plan": key, **Sensitivity(name, plan.snr_db, fidelity).data()}
            write_whole(file, (json.dumps(known, indent=1) + "\n").encode())
        entry = known[name]
        numbers = {key: entry[key] for key in ("rows", "agreement", "decisions", "drift")}
        found.append(Sensitivity(name, plan.snr_db, Fidelity(**numbers)))
    return found


def _alone(
    graph: StepGraph, plan: SitePlan, states: States, references: Sequence[Predicted]
) -> Fidelity:
    """Quantise a site in memory, run the steps as ONNX Runtime will, compare."""
    rewritten = rewrite(graph, [plan])
    inline_pieces(rewritten.model, rewritten.pieces)
    use_integer_kernels(rewritten.model)
    return compare(open_session(rewritten.model, graph.folder), states, references)


def _key(plan: SitePlan, states: States) -> str:
    """What the measurement of a site depends on."""
    precisions = ",".join(f"{name}={value}" for name, value in plan.precisions.items())
    return f"{precisions} {plan.method} {plan.largest} {plan.exponent} {len(states)} states"
