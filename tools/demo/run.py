"""`make demo`: build the shipped model, answer sample problems with every strategy, one table.

Run as ``python -m lopa.tools.demo.run [--problems FILE] [--output BUNDLE]``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..display.report import columns, print_report

if TYPE_CHECKING:
    from ...runtime.session import Result
    from .problem import Problem

HERE = Path(__file__).parent
CHECKPOINT = HERE / "checkpoint"
SAMPLES = HERE / "samples.jsonl"  # one problem per task
HELD_OUT = HERE / "heldout.jsonl"  # 25 per task
CONTEXT = 256
WINDOW = 64
MAX_NEW_TOKENS = 96

# Name in the table -> settings. Vanilla fills one position a step, as masked diffusion by default.
STRATEGIES: dict[str, dict[str, Any]] = {
    "vanilla": {"strategy": "vanilla"},
    "d2f": {"strategy": "d2f"},
    "lopa": {"lookahead": 4},
    "nested": {"lookahead": 4, "lookahead_shape": "nested"},
}


@dataclass(frozen=True)
class Row:
    """One strategy over all problems."""

    strategy: str
    right: tuple[bool, ...]  # per problem
    results: tuple[Result, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """The row of the table."""

        def total(name: str) -> float:
            return float(sum(getattr(result, name) for result in self.results))

        useful, steps = total("useful_tokens"), total("steps")
        return (
            self.strategy,
            f"{sum(self.right)}/{len(self.results)}",
            f"{steps:.0f}",
            f"{total('tokens') / steps:.2f}",
            f"{useful / steps:.2f}",
            f"{total('rows') / useful:.0f}",
            f"{useful / total('seconds'):.0f}",
        )


# TPF counts every committed token; useful tokens end with the first stop token.
HEAD = ("strategy", "correct", "steps", "TPF", "useful TPF", "rows/token", "tokens/s")


def main(argv: Sequence[str] | None = None) -> int:
    """Build, decode, print."""
    from ...export.model_folder import export_model
    from ...graphs.bundle import build_bundle
    from ...graphs.instances import plan_instances
    from ...runtime.session import open_bundle
    from .problem import read_problems

    parser = argparse.ArgumentParser(description="Answer sample problems with the demo model.")
    parser.add_argument("--problems", type=Path, default=SAMPLES, help="JSON lines of problems")
    parser.add_argument("-o", "--output", type=Path, default=Path("demo-bundle"))
    args = parser.parse_args(argv)
    started = time.perf_counter()
    instances = plan_instances(4, [WINDOW], [CONTEXT], [CONTEXT])
    with tempfile.TemporaryDirectory(prefix="lopa-demo-") as folder:
        export_model(CHECKPOINT, Path(folder) / "model")
        build_bundle(Path(folder) / "model", args.output, instances, force=True)
    print(f"built {args.output} in {time.perf_counter() - started:.1f} s", file=sys.stderr)
    session = open_bundle(args.output)
    problems = list(read_problems(args.problems))
    rows = []
    for strategy, settings in STRATEGIES.items():
        results = [
            session.generate(problem.prompt, max_new_tokens=MAX_NEW_TOKENS, **settings)
            for problem in problems
        ]
        rows.append(_grade(strategy, problems, results))
    if len(problems) <= 8:
        last = rows[-1]
        for problem, right, result in zip(problems, last.right, last.results, strict=True):
            answer = (last.strategy, result.text.splitlines())
            sections = [("prompt", problem.prompt.splitlines()), answer]
            print_report(f"{problem.task}: {'right' if right else 'wrong'}", sections)
            print()
    print("\n".join(columns([HEAD, *(row.cells for row in rows)])))
    return 0


def _grade(strategy: str, problems: Sequence[Problem], results: Sequence[Result]) -> Row:
    from .problems import grade

    right = tuple(
        grade(problem, result.text) for problem, result in zip(problems, results, strict=True)
    )
    return Row(strategy, right, tuple(results))


if __name__ == "__main__":
    sys.exit(main())
