"""Tell how far two bundles, or a bundle and its checkpoint, are apart.

Steps recorded from real decodes of BUNDLE_A run on both sides and polygraphy compares the outputs;
then both decode the same prompts. Exit status 1 when a threshold is not kept; the defaults depend
on the precisions.

--bisect walks two ONNX Runtime bundles layer by layer instead and names the first layer and
operation where they part.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import number, positive
from ..compare.thresholds import THRESHOLDS
from ..decode_flags import add_decode_flags, add_engine_flags, decode_options
from ..display.report import Section, print_report

if TYPE_CHECKING:
    from ..compare.contestant import Contestant
    from ..compare.decodes import DecodesReport
    from ..compare.feeds import Feed

Progress = Callable[[int, int], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `lopa compare`."""
    parser.add_argument("first", metavar="BUNDLE_A", type=Path, help="the reference")
    parser.add_argument(
        "second", metavar="BUNDLE_B|CHECKPOINT", type=Path, help="what is compared with it"
    )
    parser.add_argument("--adapter", metavar="DIR", type=Path, help="LoRA adapter of CHECKPOINT")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument(
        "--prompts", metavar="FILE", help="JSON lines as for lopa generate (default: four samples)"
    )
    asked.add_argument(
        "--problems", metavar="[TASK=]FILE", help="problems to grade too (default task: demo)"
    )
    parser.add_argument("--raw", action="store_true", help="no chat template")
    parser.add_argument(
        "--max-inputs",
        metavar="N",
        type=positive,
        default=32,
        help="recorded steps that are compared, spread over all (default 32)",
    )
    parser.add_argument("--save-inputs", metavar="FILE.json", type=Path, help="keep them")
    parser.add_argument(
        "--load-inputs", metavar="FILE.json", type=Path, help="use these, record none"
    )
    parser.add_argument(
        "--save-outputs", metavar="FILE.json", type=Path, help="keep the outputs of both sides"
    )
    parser.add_argument(
        "--runner",
        choices=("lopa", "polygraphy"),
        default="lopa",
        help="what runs the recorded steps: lopa's runtime (default), or polygraphy's own runner "
        "over the same engine file",
    )
    parser.add_argument("--no-decode", action="store_true", help="compare recorded steps only")
    parser.add_argument("--bisect", action="store_true", help="find the layer where they part")
    parser.add_argument(
        "--bisect-tolerance",
        metavar="F",
        type=number,
        help="relative error that counts as parting (default: by the precisions)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    group = parser.add_argument_group("thresholds")
    for item in THRESHOLDS:
        group.add_argument(item.flag, metavar="F", type=number, help=item.help)
    add_decode_flags(parser)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Open both, record, compare, print."""
    from ..compare.contestant import (
        EngineSettings,
        check_comparable,
        open_bundle_side,
        open_other_side,
    )
    from ..compare.quiet import polygraphy_log
    from ..compare.report import plain, side_lines, source_line

    _check_flags(args)
    settings = EngineSettings(
        args.provider,
        args.threads,
        not args.no_verify,
        bool(args.strict),
        args.low_memory,
        args.runtime_cache,
    )
    first = open_bundle_side(args.first, "A", settings)
    second = open_other_side(args.second, first, args.adapter)
    check_comparable(first, second)
    with polygraphy_log(args.verbose):
        outcome = (_bisect if args.bisect else _compare)(args, first, second)
    sides = {"a": first.to_json(), "b": second.to_json()}
    if args.json:
        print(json.dumps(plain({**sides, **outcome.data})))
    else:
        head = [
            ("A", side_lines(first)),
            ("B", side_lines(second)),
            ("source", [source_line(first, second)]),
        ]
        print_report(outcome.title, [*head, *outcome.sections])
    return 0 if outcome.good else 1


def _check_flags(args: argparse.Namespace) -> None:
    """Raise LopaError for flags that have nothing to do beside others."""
    from ...runtime.contract import LopaError

    decodes = not (args.no_decode or args.bisect)
    for flag, given, use in (
        ("--save-outputs", args.save_outputs, not args.bisect),
        ("--prompts", args.prompts, decodes or args.load_inputs is None),
        ("--problems", args.problems, decodes or args.load_inputs is None),
    ):
        if given is not None and not use:
            raise LopaError(f"{flag} has no use here: nothing is decoded or compared with it")


@dataclass(frozen=True)
class _Outcome:
    """What is printed, for people and for programs, and whether it is a success."""

    title: str
    sections: list[Section]
    data: dict[str, Any]
    good: bool


def _compare(args: argparse.Namespace, first: Contestant, second: Contestant) -> _Outcome:
    from ...runtime.contract import LopaError
    from ..compare.contestant import caches_fault
    from ..compare.report import agreement_lines, decode_lines, step_lines, verdict
    from ..compare.steps import compare_steps
    from ..compare.thresholds import check, default_limits

    fault = caches_fault(first, second)
    files = (args.save_inputs, args.load_inputs, args.save_outputs)
    if fault is not None and (args.no_decode or any(files)):
        raise LopaError(fault)
    feeds, decodes = _inputs(args, first, second, decode=not args.no_decode)
    steps = None
    if fault is None:
        with _progress(args, "comparing steps") as progress:
            steps = compare_steps(
                (_runner(args, first), _runner(args, second)),
                feeds,
                first.manifest.model,
                save_outputs=args.save_outputs,
                progress=progress,
            )
    limits = default_limits((first.precision, second.precision))
    given = {item.name: getattr(args, item.name) for item in THRESHOLDS}
    limits |= {name: value for name, value in given.items() if value is not None}
    checks = check(limits, steps, decodes)
    data = {
        "runner": args.runner,
        "steps": None if steps is None else asdict(steps),
        "decodes": None
        if decodes is None
        else {**asdict(decodes), "score_loss": decodes.score_loss},
        "checks": [
            {
                "flag": item.threshold.flag,
                "found": item.found,
                "expected": item.expected,
                "kept": item.kept,
            }
            for item in checks
        ],
    }
    sections = [
        *(
            [("steps", [f"not compared: {fault}"])]
            if steps is None
            else [
                (f"{steps.steps} steps", step_lines(steps)),
                ("predictions", agreement_lines(steps)),
            ]
        ),
        ("decodes", [] if decodes is None else decode_lines(decodes)),
        verdict(checks),
    ]
    title = f"lopa compare: {first.precision} and {second.precision}"
    return _Outcome(title, sections, data, all(item.kept for item in checks))


def _bisect(args: argparse.Namespace, first: Contestant, second: Contestant) -> _Outcome:
    from ...runtime.contract import LopaError
    from ..compare.bisect import COARSE_TOLERANCE, TOLERANCES, bisect
    from ..compare.contestant import caches_fault
    from ..compare.report import bisect_sections, bisect_verdict

    if any(side.target != "onnxruntime" for side in (first, second)):
        raise LopaError("--bisect walks the graphs of two onnxruntime bundles")
    fault = caches_fault(first, second)
    if fault is not None:
        raise LopaError(fault)
    feeds, _ = _inputs(args, first, second, decode=False)
    tolerance = args.bisect_tolerance
    if tolerance is None:
        tolerance = max(
            TOLERANCES.get(side.precision, COARSE_TOLERANCE) for side in (first, second)
        )
    paths = (
        first.folder / first.manifest.graph.file,
        second.folder / second.manifest.graph.file,
    )
    with _progress(args, "walking the layers") as progress:
        sides = (first.manifest, second.manifest)
        rescaled = any(manifest.quantization is not None for manifest in sides)
        report = bisect(paths, feeds, tolerance, args.threads, rescaled, progress)
    return _Outcome(
        f"lopa compare --bisect: {report.steps} steps",
        bisect_sections(report),
        {"bisect": asdict(report), "verdict": bisect_verdict(report)},
        report.parting is None,
    )


def _inputs(
    args: argparse.Namespace, first: Contestant, second: Contestant, decode: bool
) -> tuple[list[Feed], DecodesReport | None]:
    """The recorded steps, and the decodes of both sides where they are asked for.

    Steps are recorded while A decodes.
    """
    from ..compare.contestant import caches_fault
    from ..compare.decodes import compare_decodes
    from ..compare.decodes import decode as decode_all
    from ..compare.feeds import load_feeds, save_feeds
    from ..compare.questions import read_questions
    from ..compare.recording import RecordingEngine, Spread

    feeds = None if args.load_inputs is None else load_feeds(args.load_inputs, first.manifest)
    if feeds is not None and not decode:
        return feeds, None
    options = decode_options(args)
    manifests = [first.manifest, second.manifest] if decode else [first.manifest]
    for manifest in manifests:
        options.check(manifest)
    engine, spread = first.open(), Spread(args.max_inputs)
    records = feeds is None and caches_fault(first, second) is None
    session = first.session(RecordingEngine(engine, spread) if records else engine)
    questions = read_questions(session, args.prompts, args.problems, args.raw, options, manifests)
    with _progress(args, "decoding with A") as progress:
        ours = decode_all(session, questions, options, progress)
    if feeds is None:
        feeds = spread.chosen
    if args.save_inputs is not None:
        save_feeds(feeds, args.save_inputs)
    if not decode:
        return feeds, None
    with _progress(args, "decoding with B") as progress:
        theirs = decode_all(second.session(second.open()), questions, options, progress)
    return feeds, compare_decodes(ours, theirs)


def _runner(args: argparse.Namespace, side: Contestant) -> Any:
    from ..compare.engine_runner import EngineRunner
    from ..compare.saved_runner import saved_runner

    name = f"{side.label} {side.folder.name}"
    if side.is_bundle and args.runner == "polygraphy":
        return saved_runner(side.folder, side.manifest, args.provider, name)
    return EngineRunner(side.open, side.manifest, name)


@contextlib.contextmanager
def _progress(args: argparse.Namespace, title: str) -> Iterator[Progress]:
    """Show `title: done of total` on a terminal."""
    silent = args.quiet or args.json or not sys.stderr.isatty()

    def show(done: int, total: int) -> None:
        print(f"\r{title}: {done} of {total}", end="", file=sys.stderr, flush=True)

    try:
        yield (lambda done, total: None) if silent else show
    finally:
        if not silent:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
