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
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import number, positive
from ..decode_flags import add_decode_flags, add_engine_flags, decode_options, open_session
from ..display.report import columns, print_report

if TYPE_CHECKING:
    from ..eval.evaluate import Variant
    from ..eval.sweep import Sweep

DEFAULT_SEARCH = (
    "lookahead=2,4",
    "score=mixed",
    "score_alpha=0.3,0.4,0.5",
    "confidence=0.85,0.9,0.95",
)
OBJECTIVES = ("useful-tpf", "tpf")
SHOWN = 12  # rows of the table; tune.json has all
SETTINGS, REPORT = "settings.json", "tune.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `lopa tune`."""
    parser.add_argument("bundle", metavar="BUNDLE", type=Path, help="folder made by lopa build")
    parser.add_argument(
        "--task",
        metavar="NAME[=FILE]",
        action="extend",
        nargs="+",
        required=True,
        help="tasks with the validation problems (see lopa eval)",
    )
    parser.add_argument("--limit", metavar="N", type=positive, help="problems of each task")
    parser.add_argument(
        "--search",
        metavar="FIELD=A,B,...",
        action="append",
        help=f"values of one decode setting; repeat for more (default: {' '.join(DEFAULT_SEARCH)})",
    )
    parser.add_argument(
        "--max-loss",
        metavar="POINTS",
        type=number,
        default=1.0,
        help="points of score that may be lost against the base strategy (default 1)",
    )
    parser.add_argument(
        "--objective",
        choices=OBJECTIVES,
        default=OBJECTIVES[0],
        help="useful-tpf (default) stops counting at the end of text, tpf counts filling too",
    )
    parser.add_argument("--raw", action="store_true", help="no chat template, no instruction")
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, required=True, help="folder to write"
    )
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--resume", action="store_true", help="continue the search in --output")
    kept.add_argument("--force", action="store_true", help="replace the search in --output")
    parser.add_argument("--json", action="store_true", help="print tune.json")
    add_decode_flags(parser)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Check everything, decode all settings side by side, write and print."""
    from ..eval import record
    from ..eval.evaluate import encode_suite, evaluate, share_settings
    from ..eval.samples import FILE, SampleLog
    from ..eval.score_bar import show_scores
    from ..eval.suite import Selection, load_suite
    from ..eval.sweep import compare
    from ..eval.variants import changed_settings, search_variants

    options = decode_options(args)
    variants = share_settings(options, search_variants(args.search or DEFAULT_SEARCH, options))
    selection = Selection(limit=args.limit, raw=args.raw)
    suite = load_suite(args.task, selection)
    session = open_session(args)
    for variant in variants:
        variant.options.check(session.manifest)
    encoded, _ = encode_suite(session, suite, variants, args.raw)
    engine = {"provider": args.provider, "threads": args.threads}
    swept = {"field": "settings", "values": [variant.value for variant in variants]}
    summary = record.new_summary(session, suite, options, selection, engine, swept)
    summary, before = record.open_run(args.output, summary, args.resume, args.force)
    log = SampleLog(args.output / FILE, before)
    try:
        with show_scores(len(encoded) * len(variants), before, not args.quiet) as progress:
            evaluate(session, encoded, variants, log, progress)
    finally:
        log.close()
    sweep = compare(
        **summary["sweep"],
        samples=log.samples,
        labels=list(summary["tasks"]),
        allowed_loss=args.max_loss,
        objective=args.objective.replace("-", "_"),
    )
    summary = record.finished(summary, comparison=sweep.to_json())
    record.write_json(args.output / record.SUMMARY, summary)
    record.write_json(args.output / REPORT, sweep.to_json())
    best = next(variant for variant in variants if variant.value == sweep.best.value)
    settings = changed_settings(best.options)
    record.write_json(args.output / SETTINGS, settings)
    if args.json:
        print(json.dumps(sweep.to_json()))
    else:
        _print(args, sweep, best, settings)
    return 0


def _print(args: argparse.Namespace, sweep: Sweep, best: Variant, settings: dict[str, Any]) -> None:
    from dataclasses import replace

    from ..eval.sweep import task_table, value_table

    objective = args.objective.replace("-", "_")
    ranked = sorted(sweep.values[1:], key=lambda item: -float(getattr(item.overall, objective)))
    safe = [item for item in ranked if item.score_change >= -args.max_loss - 1e-9]
    shown = replace(sweep, values=(sweep.base, *safe[:SHOWN]))
    found = ", ".join(f"{name} {value}" for name, value in settings.items())
    print_report(
        f"lopa tune: {len(sweep.values)} settings, {len(safe)} of them lose at most "
        f"{args.max_loss:g} points",
        [
            ("best first", columns(value_table(shown))),
            ("tasks", columns(task_table(sweep))),
            ("settings", [found]),
        ],
    )
    if not args.quiet:
        print(f"wrote {args.output / SETTINGS}; use it with --settings", file=sys.stderr)
