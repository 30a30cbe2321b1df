"""Runs recorded steps through both sides with polygraphy and adds up how far they are apart."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from polygraphy.comparator import Comparator, SimpleCompareFunc

from ...runtime.contract import OUTPUT_NAMES, ContractError
from ...runtime.manifest import ModelInfo
from .agreement import Agreement, AgreementCount
from .feeds import Feed, masked_rows
from .recording import Step
from .saved_outputs import saved_outputs

# Ids are no quantities: they are compared as predictions.
MEASURED = tuple(name for name in OUTPUT_NAMES if name != "token_ids")


@dataclass(frozen=True)
class OutputError:
    """Error of one output: largest of all steps, mean of the steps' means; relative to A."""

    max_abs: float
    mean_abs: float
    max_rel: float
    mean_rel: float


@dataclass(frozen=True)
class StepsReport:
    """What the recorded steps showed; the fast graphs ran `fast` of them."""

    steps: int
    outputs: dict[str, OutputError]
    agreement: Agreement
    fast: int = 0


def compare_steps(
    runners: tuple[Any, Any],
    steps: Sequence[Step],
    model: ModelInfo,
    *,
    save_outputs: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> StepsReport:
    """Run every step with the runners of A and B; outputs of one step are held at a time.

    A step that a fast graph ran needs two EngineRunner. `save_outputs` takes all outputs to a file
    that `polygraphy run --load-outputs` reads. Raises ContractError when an output of one side has
    another shape.
    """
    worst: dict[str, list[Any]] = defaultdict(list)
    count = AgreementCount()
    # Errors are relative to the second of a pair: A.
    measure = SimpleCompareFunc(check_error_stat="max", find_output_func=_same_name)
    runs = Comparator.run(list(runners), data_loader=_feeds(runners, steps), streaming=True)
    with (
        contextlib.closing(runs),
        contextlib.nullcontext() if save_outputs is None else saved_outputs(save_outputs) as save,
    ):
        for number, (step, run) in enumerate(zip(steps, runs, strict=True), 1):
            one, two = (iterations[0] for iterations in run.values())
            (accuracy,) = Comparator.compare_accuracy(
                run, comparisons=[(1, 0)], compare_func=measure
            )
            (found,) = accuracy.values()
            for name in MEASURED:
                if not hasattr(found[0].get(name), "max_absdiff"):
                    raise ContractError(
                        f"output {name} is {list(one[name].shape)} and "
                        f"{list(two[name].shape) if name in two else 'missing'}"
                    )
                worst[name].append(found[0][name])
            count.add(one, two, masked_rows(step.feed, model))
            if save is not None:
                save(run)
            progress(number, len(steps))
    outputs = {name: _total(worst[name]) for name in MEASURED}
    return StepsReport(len(steps), outputs, count.total(), sum(step.fast for step in steps))


def _feeds(runners: Sequence[Any], steps: Sequence[Step]) -> Iterator[Feed]:
    """Yield the inputs of each step, after its graph was chosen: the runners take them in turn."""
    for step in steps:
        for runner in runners:
            runner.fast = step.fast
        yield step.feed


def _same_name(name: str, index: int, outputs: Any) -> list[str]:
    """Pair outputs by name; ids are left out."""
    return [name] if name in MEASURED and name in outputs else []


def _total(results: Sequence[Any]) -> OutputError:
    def values(name: str) -> list[float]:
        return [float(getattr(result, name)) for result in results]

    return OutputError(
        max_abs=float(np.max(values("max_absdiff"))),  # NaN wins, as it must
        mean_abs=float(np.mean(values("mean_absdiff"))),
        max_rel=float(np.max(values("max_reldiff"))),
        mean_rel=float(np.mean(values("mean_reldiff"))),
    )
