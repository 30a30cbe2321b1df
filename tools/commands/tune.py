"""Find the decode settings that give the most tokens per forward for the score they cost.

Every combination of the --search values is decoded on a validation set beside the base strategy
with its defaults. The settings with the most tokens per step that lose no more than --max-loss
points are written to settings.json, for --settings of generate, eval and bench. All that was tried
is in tune.json: judge the winner on other problems.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from ..arguments import amount
from ..decode_flags import (
    add_decode_flags,
    add_engine_flags,
    decode_options,
    setting_values,
)
from ..display.report import columns, print_report
from ..run_flags import add_output_flags, add_problem_flags

if TYPE_CHECKING:
    from ..eval.sweep import Sweep

DEFAULT_SEARCH = (
    "lookahead=2,4",
    "score=mixed",
    "score_alpha=0.3,0.4,0.5",
    "confidence=0.85,0.9,0.95",
)
OBJECTIVES = ("useful-tpf", "tpf")
SHOWN = 12  # rows of the table; tune.json has all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `lopa tune`."""
    add_problem_flags(parser)
    parser.add_argument(
        "--search",
        metavar="FIELD=A,B,...",
        action="append",
        type=setting_values,
        help=f"values of one decode setting; repeat for more (default: {' '.join(DEFAULT_SEARCH)})",
    )
    parser.add_argument(
        "--max-loss",
        metavar="POINTS",
        type=amount,
        default=1.0,
        help="points of score that may be lost against the base strategy (default 1)",
    )
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default=OBJECTIVES[0],
        help="useful-tpf (default) stops counting at the end of text, tpf counts filling too",
    )
    add_output_flags(parser, required=True, content="settings.json, tune.json and samples")
    add_decode_flags(parser)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Check everything, decode all settings side by side, write and print."""
    from ..eval import record
    from ..eval.run import prepare_run, score_all
    from ..eval.suite import Selection
    from ..eval.sweep import compare
    from ..eval.variants import search_variants

    options = decode_options(args)
    searches = args.search or [setting_values(text) for text in DEFAULT_SEARCH]
    variants = search_variants(searches, options)
    selection = Selection(limit=args.limit, raw=args.raw)
    prepared = prepare_run(args, options, variants, selection, "settings")
    summary, samples = score_all(
        prepared, args.output, resume=args.resume, force=args.force, shown=not args.quiet
    )
    sweep = compare(
        **summary["sweep"],
        samples=samples,
        labels=list(summary["tasks"]),
        allowed_loss=args.max_loss,
        objective=args.objective.replace("-", "_"),
    )
    summary = record.finished(summary, comparison=sweep.to_json())
    record.write_json(args.output / record.SUMMARY, summary)
    record.write_json(args.output / record.TUNED, sweep.to_json())
    best = next(variant for variant in prepared.variants if variant.value == sweep.best.value)
    settings = best.options.given
    record.write_json(args.output / record.SETTINGS, settings)
    if args.json:
        print(json.dumps(sweep.to_json()))
    else:
        _print(args, sweep, settings)
    return 0


def _print(args: argparse.Namespace, sweep: Sweep, settings: dict[str, Any]) -> None:
    from dataclasses import replace

    from ..eval.record import SETTINGS
    from ..eval.sweep import OBJECTIVES, points, task_table, value_table

    safe = [item for item in sweep.safe if item is not sweep.base]
    loss, measure = points(sweep.allowed_loss), OBJECTIVES[sweep.objective]
    won = sweep.best is not sweep.base
    shown = replace(sweep, values=(sweep.base, *safe[:SHOWN]))
    result = f"{sweep.best.value}: {sweep.gain(sweep.best):.2f}x the {measure} of the base"
    if not won:
        result = (
            f"nothing beat the base: no other setting has a higher {measure} and loses at most "
            f"{loss}; the tasks show the base beside the one with the highest {measure}"
        )
    print_report(
        f"lopa tune: {len(sweep.values) - 1} settings against the base, {len(safe)} of them lose "
        f"at most {loss}",
        [
            ("result", [result]),
            ("base, best", columns(value_table(shown))),
            ("tasks", columns(task_table(sweep))),
            ("settings", [", ".join(f"{name} {value}" for name, value in settings.items())]),
        ],
    )
    if not args.quiet:
        use = "use it with --settings" if won else "it holds the base"
        print(f"wrote {args.output / SETTINGS}; {use}", file=sys.stderr)
