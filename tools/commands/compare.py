"""Tell how far two bundles, or a bundle and its checkpoint, are apart.

Steps recorded from real decodes of BUNDLE_A run on both sides and polygraphy compares the outputs;
then both decode the same prompts. Exit status 1 when a threshold is not kept; the defaults depend
on the precisions.

--bisect walks two ONNX Runtime bundles layer by layer instead and names the first layer and
operation where they part.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..arguments import amount, positive
from ..compare.thresholds import THRESHOLDS
from ..decode_flags import add_decode_flags, add_engine_flags, decode_options
from ..display.progress import Progress, show_progress
from ..display.report import Section, print_report
from ..paths import file_or_stdin, output_file, path, problem_file
from ..prompt_lines import add_prompt_limit

if TYPE_CHECKING:
    from ...runtime.options import DecodeOptions
    from ..compare.contestant import Contestant
    from ..compare.decodes import DecodesReport
    from ..compare.recording import Step


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `lopa compare`."""
    parser.add_argument("first", metavar="BUNDLE_A", type=path, help="the reference")
    parser.add_argument(
        "second", metavar="BUNDLE_B|CHECKPOINT", type=path, help="what is compared with it"
    )
    parser.add_argument("--adapter", metavar="DIR", type=path, help="LoRA adapter of CHECKPOINT")
    asked = parser.add_mutually_exclusive_group()
    asked.add_argument(
        "--prompts",
        metavar="FILE",
        type=file_or_stdin,
        help="JSON lines as for lopa generate (default: four samples)",
    )
    asked.add_argument(
        "--problems",
        metavar="[TASK=]FILE",
        type=problem_file,
        help="problems to grade too (default task: demo)",
    )
    add_prompt_limit(parser)
    parser.add_argument("--raw", action="store_true", help="no chat template")
    parser.add_argument(
        "--max-inputs",
        metavar="N",
        type=positive,
        default=32,
        help="recorded steps that are compared, spread over all (default 32)",
    )
    parser.add_argument("--save-inputs", metavar="FILE.json", type=output_file, help="keep them")
    parser.add_argument(
        "--load-inputs", metavar="FILE.json", type=path, help="use these, record none"
    )
    parser.add_argument(
        "--save-outputs",
        metavar="FILE.json",
        type=output_file,
        help="keep the outputs of both sides",
    )
    parser.add_argument(
        "--force", action="store_true", help="replace other files at --save-inputs, --save-outputs"
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
        type=amount,
        help="relative error that counts as parting (default: by the precisions)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    group = parser.add_argument_group("thresholds")
    for item in THRESHOLDS:
        group.add_argument(item.flag, metavar="F", type=item.type, help=item.help)
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

    options = decode_options(args)
    _check_flags(args, options.precision_policy)
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
    shown = not (args.quiet or args.json)
    with show_progress(shown) as progress, polygraphy_log(args.verbose):
        work = _Work(args, options, first, second, progress)
        outcome = _bisect(work) if args.bisect else _compare(work)
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


def _check_flags(args: argparse.Namespace, policy: str) -> None:
    """Raise LopaError for flags that have nothing to do beside others, and for files in the way."""
    from ...runtime.contract import LopaError
    from ..compare.output_file import check_output_file

    loads, decodes = args.load_inputs is not None, not (args.no_decode or args.bisect)
    saved = [file for file in (args.save_inputs, args.save_outputs) if file is not None]
    for flag, given, use, reason in (
        ("--save-inputs", args.save_inputs, not loads, "--load-inputs records none"),
        ("--save-outputs", args.save_outputs, not args.bisect, "--bisect keeps none"),
        ("--force", args.force or None, saved, "no file is saved"),
        ("--prompts", args.prompts, decodes or not loads, "nothing is decoded"),
        ("--problems", args.problems, decodes, "nothing is graded; --prompts takes prompts"),
    ):
        if given is not None and not use:
            raise LopaError(f"{flag} has no use here: {reason}")
    if policy != "full":
        for flag, given, reason in (
            ("--bisect", args.bisect, "walks the full graphs"),
            ("--runner polygraphy", args.runner == "polygraphy", "runs the full graphs"),
            ("--load-inputs", loads and policy == "auto", "does not say which graph ran a step"),
        ):
            if given:
                raise LopaError(f"{flag} {reason}; use it without --precision-policy {policy}")
    for file in saved:
        check_output_file(file, args.force)


@dataclass(frozen=True)
class _Work:
    """What is to be compared, and how."""

    args: argparse.Namespace
    options: DecodeOptions
    first: Contestant
    second: Contestant
    progress: Progress

    def stage(self, title: str) -> Callable[[int, int], None]:
        """Progress of one stage."""
        return lambda done, total: self.progress(title, done, total, f"of {total}")


@dataclass(frozen=True)
class _Outcome:
    """What is printed, for people and for programs, and whether it is a success."""

    title: str
    sections: list[Section]
    data: dict[str, Any]
    good: bool


def _compare(work: _Work) -> _Outcome:
    from ...runtime.contract import LopaError
    from ..compare.contestant import caches_fault
    from ..compare.report import agreement_lines, decode_lines, step_lines, verdict
    from ..compare.steps import compare_steps
    from ..compare.thresholds import check, default_limits

    args, first, second = work.args, work.first, work.second
    policy = work.options.precision_policy
    precisions = [name for side in (first, second) for name in side.precisions(policy)]
    fault = caches_fault(first, second)
    files = (args.save_inputs, args.load_inputs, args.save_outputs)
    if fault is not None and (args.no_decode or any(files)):
        raise LopaError(fault)
    recorded, decodes = _inputs(work, decode=not args.no_decode)
    steps = None
    if fault is None:
        steps = compare_steps(
            (_runner(args, first), _runner(args, second)),
            recorded,
            first.manifest.model,
            save_outputs=args.save_outputs,
            progress=work.stage("comparing steps"),
        )
    limits = default_limits(precisions)
    given = {item.name: getattr(args, item.name) for item in THRESHOLDS}
    limits |= {name: value for name, value in given.items() if value is not None}
    checks = check(limits, steps, decodes)
    data = {
        "runner": args.runner,
        "precision_policy": policy,
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
    if policy != "full":
        title += f", precision policy {policy}"
    return _Outcome(title, sections, data, all(item.kept for item in checks))


def _bisect(work: _Work) -> _Outcome:
    from ...runtime.contract import LopaError
    from ..compare.bisect import COARSE_TOLERANCE, TOLERANCES, bisect
    from ..compare.contestant import caches_fault
    from ..compare.report import bisect_sections, bisect_verdict

    args, first, second = work.args, work.first, work.second
    if any(side.target != "onnxruntime" for side in (first, second)):
        raise LopaError("--bisect walks the graphs of two onnxruntime bundles")
    fault = caches_fault(first, second)
    if fault is not None:
        raise LopaError(fault)
    recorded, _ = _inputs(work, decode=False)
    tolerance = args.bisect_tolerance
    if tolerance is None:
        tolerance = max(
            TOLERANCES.get(side.precision, COARSE_TOLERANCE) for side in (first, second)
        )
    paths = (
        first.folder / first.manifest.graph.file,
        second.folder / second.manifest.graph.file,
    )
    sides = (first.manifest, second.manifest)
    rescaled = any(manifest.quantization is not None for manifest in sides)
    feeds = [step.feed for step in recorded]
    progress = work.stage("walking the layers")
    report = bisect(paths, feeds, tolerance, args.threads, rescaled, progress)
    return _Outcome(
        f"lopa compare --bisect: {report.steps} steps",
        bisect_sections(report),
        {"bisect": asdict(report), "verdict": bisect_verdict(report)},
        report.parting is None,
    )


def _inputs(work: _Work, decode: bool) -> tuple[list[Step], DecodesReport | None]:
    """The recorded steps, and the decodes of both sides where they are asked for.

    Steps are recorded while A decodes.
    """
    from ..compare.contestant import caches_fault
    from ..compare.decodes import compare_decodes
    from ..compare.decodes import decode as decode_all
    from ..compare.feeds import load_feeds, save_feeds
    from ..compare.questions import read_questions
    from ..compare.recording import RecordingEngine, Spread, Step

    args, options, first, second = work.args, work.options, work.first, work.second
    steps = None
    if args.load_inputs is not None:
        fast = options.precision_policy == "fast"
        steps = [Step(feed, fast) for feed in load_feeds(args.load_inputs, first.manifest)]
        if not decode:
            return steps, None
    manifests = [first.manifest, second.manifest] if decode else [first.manifest]
    for manifest in manifests:
        options.check(manifest)
    engine, spread = first.open(), Spread(args.max_inputs)
    records = steps is None and caches_fault(first, second) is None
    session = first.session(RecordingEngine(engine, spread) if records else engine)
    questions = read_questions(session, args, options, manifests)
    ours = decode_all(session, questions, options, work.stage("decoding with A"))
    if steps is None:
        steps = spread.chosen
    if args.save_inputs is not None:
        save_feeds([step.feed for step in steps], args.save_inputs)
    if not decode:
        return steps, None
    session = second.session(second.open())
    theirs = decode_all(session, questions, options, work.stage("decoding with B"))
    return steps, compare_decodes(ours, theirs)


def _runner(args: argparse.Namespace, side: Contestant) -> Any:
    from ..compare.engine_runner import EngineRunner
    from ..compare.saved_runner import saved_runner

    name = f"{side.label} {side.folder.name}"
    if side.is_bundle and args.runner == "polygraphy":
        return saved_runner(side.folder, side.manifest, args.provider, name)
    return EngineRunner(side.open, side.manifest, name)
