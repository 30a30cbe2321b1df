"""Export a Hugging Face checkpoint to a model folder.

The folder is what `lopa build` compiles. A LoRA adapter is merged on the way. Code that a
checkpoint may bring is never run.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import positive
from ..display.progress import show_progress
from ..display.report import file_lines, model_lines, print_report, total_bytes, version_lines
from ..paths import output_folder, path
from ..source_plan import PRECISIONS, SourcePlan, add_write_flags, plan_checkpoint

if TYPE_CHECKING:
    from ...runtime.manifest import ModelManifest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `lopa export`."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", type=path, help="Hugging Face folder")
    parser.add_argument(
        "-o", "--output", metavar="MODEL", type=output_folder, required=True, help="folder to write"
    )
    parser.add_argument("--adapter", metavar="DIR", type=path, help="PEFT LoRA folder to merge")
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="fp32", help="of weights and caches (fp32)"
    )
    parser.add_argument(
        "--candidates",
        metavar="K",
        type=positive,
        default=8,
        help="tokens the engine keeps per position; limits --top-k (default 8)",
    )
    add_write_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Export, or show the plan."""
    if args.dry_run:
        plan = plan_checkpoint(
            args.checkpoint, args.adapter, args.precision, args.candidates, args.output, args.force
        )
        _print_plan(plan, args)
        return 0
    from ...export.model_folder import export_model

    started = time.perf_counter()
    with show_progress(not (args.quiet or args.json)) as progress:
        manifest = export_model(
            args.checkpoint,
            args.output,
            adapter=args.adapter,
            precision=args.precision,
            candidates=args.candidates,
            force=args.force,
            progress=progress,
        )
    seconds = time.perf_counter() - started
    if args.json:
        print(json.dumps(_summary(manifest, args.output, seconds)))
    elif not args.quiet:
        print_report(
            f"exported {args.output}",
            [
                ("model", model_lines(manifest.model)),
                ("precision", [manifest.graph.precision]),
                ("files", file_lines(manifest.files)),
                ("versions", version_lines(manifest.versions)),
                ("seconds", [f"{seconds:.1f}"]),
                ("next", [f"lopa build {args.output} -o BUNDLE"]),
            ],
        )
    return 0


def _print_plan(plan: SourcePlan, args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps({"dry_run": True, "output": str(args.output), **plan.summary()}))
        return
    print_report(f"would export {args.output}", plan.sections())


def _summary(manifest: ModelManifest, output: Path, seconds: float) -> dict[str, Any]:
    return {
        "output": str(output),
        "family": manifest.model.family,
        "precision": manifest.graph.precision,
        "files": {name: record.bytes for name, record in manifest.files.items()},
        "bytes": total_bytes(manifest.files),
        "versions": manifest.versions,
        "seconds": round(seconds, 3),
    }
