"""Build a bundle: a saved engine ready to decode.

A Hugging Face folder is exported first; a model folder made by `lopa export` is compiled as it is.
The bundle offers every combination of branches, windows and contexts asked for as an instance.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...graphs.targets import TARGETS
from ...runtime.contract import Instance, LopaError
from ..arguments import natural, positive, positives
from ..display.progress import Progress, show_progress
from ..display.report import (
    file_lines,
    instance_lines,
    model_lines,
    print_report,
    total_bytes,
    version_lines,
)
from ..source_plan import PRECISIONS, SourcePlan, add_write_flags, plan_source

if TYPE_CHECKING:
    from ...runtime.manifest import BundleManifest

DEFAULT_CONTEXT = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `lopa build`, trtexec's spellings among them."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        type=Path,
        nargs="?",
        help="Hugging Face folder, or model folder made by lopa export",
    )
    source.add_argument(
        "--onnx", metavar="MODEL", type=Path, help="as in trtexec: the model folder or its .onnx"
    )
    parser.add_argument(
        "-o",
        "--output",
        "--saveEngine",
        metavar="BUNDLE",
        type=Path,
        required=True,
        help="folder to write",
    )
    parser.add_argument("--adapter", metavar="DIR", type=Path, help="PEFT LoRA folder to merge")
    parser.add_argument("--target", choices=TARGETS, default=TARGETS[0], help=f"({TARGETS[0]})")
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument(
        "--precision", choices=PRECISIONS, help="default: fp32, or what the model folder has"
    )
    precision.add_argument(
        "--fp16", dest="precision", action="store_const", const="fp16", help="--precision fp16"
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
        help="window tokens of a branch; what does not fit waits (default: the largest context, as "
        "onnxruntime runs the exact shape of a step)",
    )
    parser.add_argument(
        "--prefill",
        metavar="W,...",
        type=positives,
        help="window tokens of the anchor alone, for prompts and whole-sequence decoding "
        "(default: the largest context)",
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


def run(args: argparse.Namespace) -> int:
    """Build, or show the plan."""
    from ...graphs.bundle import build_bundle

    started = time.perf_counter()
    with show_progress(not (args.quiet or args.json)) as progress:
        progress("reading", 0, 1)
        plan = plan_source(
            _model_folder(args.onnx) if args.checkpoint is None else args.checkpoint,
            args.adapter,
            args.precision,
            args.candidates,
            args.output,
            args.force,
        )
        instances = _instances(args, plan)
        manifest = None
        if not args.dry_run:
            with _model(plan, args.output, progress) as model:
                progress(f"building for {args.target}", 0, 1)
                manifest = build_bundle(
                    model, args.output, instances, target=args.target, force=args.force
                )
    if manifest is None:
        _print_plan(plan, instances, args)
    else:
        _print_summary(manifest, args, time.perf_counter() - started)
    return 0


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
    longest = (max(contexts),)
    return plan_instances(args.lookahead, args.window or longest, args.prefill or longest, contexts)


@contextlib.contextmanager
def _model(plan: SourcePlan, out: Path, progress: Progress) -> Iterator[Path]:
    """Yield the model folder, exported next to the output for as long as it is needed."""
    if plan.kind == "model folder":
        yield plan.folder
        return
    from ...export.model_folder import export_model

    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{out.name}.", suffix=".export", dir=out.parent
    ) as stage:
        model = Path(stage, "model")
        export_model(
            plan.folder,
            model,
            adapter=plan.adapter,
            precision=plan.precision,
            candidates=plan.model.candidates,
            progress=progress,
        )
        yield model


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


def _print_summary(manifest: BundleManifest, args: argparse.Namespace, seconds: float) -> None:
    if args.json:
        print(json.dumps(_summary(manifest, args.output, seconds)))
    elif not args.quiet:
        print_report(
            f"built {args.output} for {manifest.engine.target}",
            [
                ("model", model_lines(manifest.model)),
                ("precision", [manifest.graph.precision]),
                ("instances", instance_lines(manifest.instances)),
                ("files", file_lines(manifest.files)),
                ("engine", version_lines(manifest.engine.versions)),
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
