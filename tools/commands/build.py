"""Build a bundle: a saved engine ready to decode.

A Hugging Face folder is exported first; a model folder made by `lopa export` is compiled as it is.
The bundle offers every combination of branches, windows and contexts asked for as an instance.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...graphs.targets import check_fast_target, check_target, offer_of, offers
from ...graphs.targets.listener import BuildListener
from ...runtime.contract import Instance, LopaError
from ...runtime.targets import TARGETS
from ..arguments import natural, positive, positives
from ..display.progress import show_progress
from ..display.report import (
    engine_lines,
    fast_lines,
    file_lines,
    instance_lines,
    model_lines,
    print_report,
    quantization_lines,
    total_bytes,
    version_lines,
)
from ..paths import output_folder, path
from ..source_plan import PRECISIONS, SourcePlan, add_write_flags, exported_model, plan_source
from ..target_flags import add_precision_flags, add_target_flags, check_int8, target_settings

if TYPE_CHECKING:
    from ...runtime.manifest import BundleManifest

DEFAULT_CONTEXT = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `lopa build`, trtexec's spellings among them."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        type=path,
        nargs="?",
        help="Hugging Face folder, or model folder made by lopa export",
    )
    source.add_argument(
        "--onnx", metavar="MODEL", type=path, help="as in trtexec: the model folder or its .onnx"
    )
    parser.add_argument(
        "-o",
        "--output",
        "--saveEngine",
        metavar="BUNDLE",
        type=output_folder,
        required=True,
        help="folder to write",
    )
    parser.add_argument("--adapter", metavar="DIR", type=path, help="PEFT LoRA folder to merge")
    first = next(iter(TARGETS))
    parser.add_argument("--target", choices=tuple(TARGETS), default=first, help=f"({first})")
    add_precision_flags(parser, PRECISIONS)
    parser.add_argument(
        "--fast-model",
        metavar="DIR",
        type=path,
        help="the same model quantised by lopa calibrate; the bundle holds both, and "
        "--precision-policy of generate chooses per step",
    )
    parser.add_argument(
        "--lookahead",
        metavar="K",
        type=natural,
        default=4,
        help="most lookahead branches beside the anchor (default 4)",
    )
    parser.add_argument(
        "--window",
        metavar="W,...",
        type=positives,
        help="window tokens of a branch; what does not fit waits (default: "
        f"{_defaults('window_text')})",
    )
    parser.add_argument(
        "--prefill",
        metavar="W,...",
        type=positives,
        help="window tokens of the anchor alone, for prompts and whole-sequence decoding "
        f"(default: {_defaults('prefill_text')})",
    )
    parser.add_argument(
        "--context",
        metavar="C,...",
        type=positives,
        help=f"cache slots: prompt and answer (default {DEFAULT_CONTEXT}, or what the model has)",
    )
    parser.add_argument(
        "--candidates",
        metavar="K",
        type=positive,
        help="tokens the engine keeps per position; limits --top-k (default 8)",
    )
    add_write_flags(parser)
    add_target_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Build, or show the plan."""
    from ...graphs.bundle import build_bundle

    started = time.perf_counter()
    settings = target_settings(args)
    source = _model_folder(args.onnx) if args.checkpoint is None else args.checkpoint
    warnings: list[str] = []
    with show_progress(not (args.quiet or args.json)) as progress:
        progress("reading", 0, 1)
        plan = plan_source(
            source,
            args.adapter,
            args.precision,
            args.candidates,
            args.output,
            args.force,
        )
        if args.int8:
            check_int8(source)
        if args.fast_model is not None:
            check_fast_target(args.target)
        check_target(args.target, plan.precision, settings)
        instances = _instances(args, plan)
        manifest = None
        if not args.dry_run:
            stage = f"building for {args.target}"
            listener = BuildListener(
                lambda share: progress(stage, round(100 * share), 100, "%"), warnings.append
            )
            with exported_model(plan, args.output, progress) as model:
                progress(stage, 0, 1)
                manifest = build_bundle(
                    model,
                    args.output,
                    instances,
                    target=args.target,
                    fast=args.fast_model,
                    settings=settings,
                    listener=listener,
                    force=args.force,
                )
    if manifest is None:
        _print_plan(plan, instances, args)
    else:
        _print_summary(manifest, warnings, args, time.perf_counter() - started)
    return 0


def _defaults(text: str) -> str:
    """What each kind of target does without a flag, by the name of a text of WindowDefaults."""
    said: dict[str, list[str]] = {}
    for target, offer in offers().items():
        said.setdefault(getattr(offer.windows, text), []).append(target)
    return "; ".join(f"on {', '.join(names)} {what}" for what, names in said.items())


def _model_folder(path: Path) -> Path:
    return path.parent if path.is_file() else path


def _instances(args: argparse.Namespace, plan: SourcePlan) -> tuple[Instance, ...]:
    from ...graphs.instances import plan_instances

    positions = plan.model.max_positions
    contexts = args.context or (min(DEFAULT_CONTEXT, positions),)
    if max(contexts) > positions:
        raise LopaError(
            f"context {max(contexts)} is longer than the model's {positions} positions; "
            f"choose --context {positions} or less"
        )
    windows, prefills = offer_of(args.target).windows.sizes(plan.model.block_size, contexts)
    return plan_instances(
        args.lookahead, args.window or windows, args.prefill or prefills, contexts
    )


def _print_plan(
    plan: SourcePlan, instances: tuple[Instance, ...], args: argparse.Namespace
) -> None:
    if args.json:
        shapes = [vars(item) for item in instances]
        plans = {"dry_run": True, "output": str(args.output), "target": args.target}
        print(json.dumps({**plans, **plan.summary(), "instances": shapes}))
        return
    print_report(
        f"would build {args.output} for {args.target}",
        [*plan.sections(), ("instances", instance_lines(instances))],
    )


def _print_summary(
    manifest: BundleManifest, warnings: list[str], args: argparse.Namespace, seconds: float
) -> None:
    if args.json:
        print(json.dumps({**_summary(manifest, args.output, seconds), "warnings": warnings}))
    elif not args.quiet:
        print_report(
            f"built {args.output} for {manifest.engine.target}",
            [
                ("model", model_lines(manifest.model)),
                ("precision", [manifest.graph.precision]),
                ("quantized", quantization_lines(manifest.quantization)),
                ("fast graph", fast_lines(manifest.fast)),
                ("instances", instance_lines(manifest.instances)),
                ("files", file_lines(manifest.files)),
                ("engine", engine_lines(manifest.engine)),
                ("warnings", warnings),
                ("versions", version_lines(manifest.versions)),
                ("seconds", [f"{seconds:.1f}"]),
                ("next", [f"lopa generate {args.output} --prompt TEXT"]),
            ],
        )


def _summary(manifest: BundleManifest, output: Path, seconds: float) -> dict[str, Any]:
    return {
        "output": str(output),
        "target": manifest.engine.target,
        "family": manifest.model.family,
        "precision": manifest.graph.precision,
        "instances": [vars(item) for item in manifest.instances],
        "files": {name: record.bytes for name, record in manifest.files.items()},
        "bytes": total_bytes(manifest.files),
        "engine_versions": manifest.engine.versions,
        "versions": manifest.versions,
        "seconds": round(seconds, 3),
    }
