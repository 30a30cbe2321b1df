"""Score a bundle on tasks, and what each setting costs and gains.

Tasks with problems of their own: words, sudoku, countdown, functions (demo: all four). From your
files: gsm8k, math, humaneval, mbpp, and the public sudoku and countdown sets (NAME=FILE).

--sweep decodes every problem once per value, side by side, and compares with the first value;
--picture draws one decode, position by step. Both draw with matplotlib (extra report).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..arguments import natural, positive
from ..decode_flags import (
    add_decode_flags,
    add_engine_flags,
    decode_options,
    setting_values,
)
from ..display.report import NO_ROOM, columns, print_report
from ..parallel import add_parallel_flag
from ..paths import path, task_file
from ..run_flags import add_output_flags, add_problem_flags

if TYPE_CHECKING:
    from ..eval.run import Run
    from ..eval.samples import Sample
    from ..eval.sweep import Sweep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `lopa eval`."""
    add_problem_flags(parser)
    parser.add_argument(
        "--limit-seed",
        metavar="N",
        type=natural,
        help="draw them with this seed (default: the first N)",
    )
    parser.add_argument(
        "--shots",
        metavar="NAME=FILE",
        type=task_file,
        action="append",
        default=[],
        help="file of worked examples put before every problem of a task",
    )
    parser.add_argument(
        "--shot-count", metavar="N", type=positive, default=4, help="first N of them (default 4)"
    )
    parser.add_argument(
        "--skip-long",
        action="store_true",
        help="leave out problems that do not fit the bundle (default: an error)",
    )
    more = parser.add_mutually_exclusive_group()
    more.add_argument(
        "--sweep",
        metavar="FIELD=A,B,...",
        type=setting_values,
        help="compare values of one decode setting",
    )
    more.add_argument(
        "--variants",
        metavar="FILE",
        type=path,
        help='compare the settings of a file, one {"name": ..., settings} a line',
    )
    more.add_argument("--picture", metavar="ID", help="only draw the decode of this problem")
    add_output_flags(parser, required=False, content="samples, summary and pictures")
    add_parallel_flag(parser)
    add_decode_flags(parser)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Check everything, decode and grade, write and print."""
    from ...runtime.contract import LopaError
    from ..eval.evaluate import Variant
    from ..eval.run import prepare_run
    from ..eval.suite import Selection
    from ..eval.sweep import sweep_variants
    from ..eval.variants import read_variants

    folder_flags = ("sweep", "variants", "picture", "resume", "force")
    if args.output is None and any(getattr(args, flag) for flag in folder_flags):
        flag = next(flag for flag in folder_flags if getattr(args, flag))
        raise LopaError(f"--{flag} needs --output DIR")
    if args.sweep or args.variants or args.picture:
        import matplotlib  # noqa: F401  # a missing one is said before hours of decoding
    options = decode_options(args)
    field, variants = None, [Variant(None, options)]
    if args.sweep:
        field, values = args.sweep
        variants = sweep_variants(field, values, options)
    elif args.variants:
        field, variants = "settings", read_variants(args.variants, options)
    selection = Selection(args.limit, args.limit_seed, tuple(args.shots), args.shot_count, args.raw)
    more = {"skip_long": args.skip_long}
    if args.parallel > 1:  # runs of earlier versions do not say so, and can go on
        more["parallel"] = args.parallel
    prepared = prepare_run(args, options, variants, selection, field, **more)
    return _draw(args, prepared) if args.picture else _score(args, prepared)


def _score(args: argparse.Namespace, run: Run) -> int:
    from ..eval import record
    from ..eval.run import score_all
    from ..eval.sweep import compare
    from ..eval.totals import totals_by_task

    summary, samples = score_all(
        run, args.output, resume=args.resume, force=args.force, shown=not args.quiet
    )
    labels = list(summary["tasks"])
    sweep = None
    if summary["sweep"] is None:
        totals = totals_by_task(samples, labels)
        results = {"scores": {name: item.to_json() for name, item in totals.items()}}
    else:
        sweep = compare(**summary["sweep"], samples=samples, labels=labels)
        results = {"comparison": sweep.to_json()}
    summary = record.finished(summary, **results)
    if args.output is not None:
        record.write_json(args.output / record.SUMMARY, summary)
    if sweep is not None:
        from ..eval.curve import draw_curve

        record.write_json(args.output / record.SWEEP, sweep.to_json())
        title = f"{', '.join(labels)}: {run.session.manifest.source.checkpoint}"
        draw_curve(sweep, title, args.output / record.CURVE)
    if args.json:
        print(json.dumps(summary, ensure_ascii=False))
    else:
        _print(args, samples, labels, sweep, summary["skipped"])
    return 0


def _print(
    args: argparse.Namespace,
    samples: Sequence[Sample],
    labels: Sequence[str],
    sweep: Sweep | None,
    skipped: Sequence[str],
) -> None:
    from ..eval.sweep import task_table, value_table
    from ..eval.totals import score_table, totals_by_task

    if sweep is None:
        print("\n".join(columns(score_table(totals_by_task(samples, labels)))))
    else:
        sections = [
            ("values", columns(value_table(sweep))),
            ("tasks", columns(task_table(sweep))),
            ("best", [sweep.verdict]),
        ]
        listed = ", ".join(str(item.value) for item in sweep.values)
        print_report(f"lopa eval: {sweep.field} {listed}", sections)
    if args.quiet:
        return
    notes = [f"left out, too long for the bundle: {len(skipped)} problems"] if skipped else []
    if args.parallel > 1:
        notes.append(f"{args.parallel} problems at the same time: their seconds overlap")
    if any(sample.limited for sample in samples):
        notes.append(NO_ROOM)
    notes += [f"wrote {args.output}"] if args.output is not None else []
    for note in notes:
        print(note, file=sys.stderr)


def _draw(args: argparse.Namespace, run: Run) -> int:
    from ..eval.draw import draw_decode, find_problem

    chosen = find_problem(args.picture, run.encoded)
    picture, record = draw_decode(run.session, chosen, run.variants[0], args.output)
    if args.json:
        print(json.dumps(record, ensure_ascii=False))
    else:
        print("\n".join([picture.title, picture.subtitle, *record["files"]]))
    return 0
