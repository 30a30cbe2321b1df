"""`make demo`: build the shipped model, answer sample problems with every strategy, one table.

Run as ``python -m lopa.tools.demo.run [--problems FILE] [--output BUNDLE]``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..display.report import columns, print_report

if TYPE_CHECKING:
    from ..eval.totals import Totals

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

# TPF counts every committed token; useful tokens end with the first stop token.
HEAD = ("strategy", "correct", "steps", "TPF", "useful TPF", "rows/token", "tokens/s")


def main(argv: Sequence[str] | None = None) -> int:
    """Build, decode, print."""
    from ...export.model_folder import export_model
    from ...graphs.bundle import build_bundle
    from ...graphs.instances import plan_instances
    from ...runtime.options import DecodeOptions
    from ...runtime.session import open_bundle
    from ..eval.evaluate import Variant, encode_suite, evaluate
    from ..eval.samples import SampleLog
    from ..eval.suite import Selection, load_suite
    from ..eval.totals import Totals
    from ..paths import is_ours

    parser = argparse.ArgumentParser(description="Answer sample problems with the demo model.")
    parser.add_argument("--problems", type=Path, default=SAMPLES, help="JSON lines of problems")
    parser.add_argument("-o", "--output", type=Path, default=Path("demo-bundle"))
    args = parser.parse_args(argv)
    started = time.perf_counter()
    instances = plan_instances(4, [WINDOW], [CONTEXT], [CONTEXT])
    with tempfile.TemporaryDirectory(prefix="lopa-demo-") as folder:
        export_model(CHECKPOINT, Path(folder) / "model")
        build_bundle(Path(folder) / "model", args.output, instances, force=is_ours(args.output))
    print(f"built {args.output} in {time.perf_counter() - started:.1f} s", file=sys.stderr)
    session = open_bundle(args.output)
    suite = load_suite([f"demo={args.problems}"], Selection())
    variants = [
        Variant(name, DecodeOptions(max_new_tokens=MAX_NEW_TOKENS, **settings))
        for name, settings in STRATEGIES.items()
    ]
    encoded, _ = encode_suite(session, suite, variants, raw=False)
    log = SampleLog(None)
    evaluate(session, encoded, variants, log, lambda task, sample: None)
    by_strategy = {
        name: [sample for sample in log.samples if sample.variant == name] for name in STRATEGIES
    }
    if len(encoded) <= 8:
        name, last = list(by_strategy.items())[-1]
        for sample in last:
            answer = (name, sample.text.splitlines())
            sections = [("prompt", sample.prompt.splitlines()), answer]
            print_report(f"{sample.task}: {'right' if sample.correct else 'wrong'}", sections)
            print()
    rows = [_cells(name, Totals.of(samples)) for name, samples in by_strategy.items()]
    print("\n".join(columns([HEAD, *rows])))
    return 0


def _cells(strategy: str, totals: Totals) -> tuple[str, ...]:
    """One strategy over all problems; what it costs is per useful token."""
    useful = totals.useful_tokens
    return (
        strategy,
        f"{totals.correct}/{totals.problems}",
        str(totals.steps),
        f"{totals.tpf:.2f}",
        f"{totals.useful_tpf:.2f}",
        f"{totals.rows / useful:.0f}",
        f"{useful / totals.seconds:.0f}",
    )


if __name__ == "__main__":
    sys.exit(main())
