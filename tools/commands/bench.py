"""Measure the saved engine against eager torch, side by side in one run.

The baseline works the way the published code does: eager torch, one forward per branch, its own
key/value cache. Both decode the same prompts with the same settings, each in its own process, one
after the other; tokens must be identical. Ratios are taken per pair of neighbouring runs.

Without CHECKPOINT the shipped demo model is measured; --random makes a model of any size.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import natural, number, positive
from ..display.progress import show_progress
from ..display.report import columns, print_report, size_text
from ..paths import file_or_stdin, path
from ..prompt_lines import add_prompt_limit

if TYPE_CHECKING:
    from ...runtime.manifest import BundleManifest
    from ..bench.compare import Comparison

PROMPT_TOKENS = 40  # of a random prompt
FLAGS: tuple[tuple[str, Callable[[str], float], float | None, str], ...] = (
    ("--prompt-count", positive, 4, "prompts used"),
    ("--repeats", positive, 3, "runs of each contestant on each prompt"),
    ("--lookahead", natural, 4, "lookahead branches"),
    ("--window", positive, 64, "window tokens per branch"),
    ("--context", positive, 256, "cache slots"),
    ("--block-size", positive, None, "positions of a block (default: the model's)"),
    ("--max-new-tokens", positive, 64, "tokens of each decode"),
    ("--add-threshold", number, 0.1, "decoded share of a block at which the next is added"),
    ("--complete-threshold", number, 0.95, "share at which the block after it may be forced"),
    ("--confidence", number, 0.9, "every position above it is filled at once"),
    ("--threads", natural, 0, "threads of each contestant, 0: all cores"),
    ("--cold-starts", natural, 5, "measurements of the first token"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `lopa bench`."""
    parser.add_argument(
        "checkpoint", metavar="CHECKPOINT", nargs="?", type=path, help="Hugging Face folder"
    )
    parser.add_argument(
        "--random", metavar="SPEC", help="measure a random model, for example d768,l12,v32k"
    )
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        type=file_or_stdin,
        help="JSON lines as for lopa generate; default: held-out problems for the demo model, "
        "random ids for any other",
    )
    add_prompt_limit(parser)
    for flag, kind, default, text in FLAGS:
        shown = text if default is None else f"{text} (default {default})"
        metavar = "F" if kind is number else "N"
        parser.add_argument(flag, type=kind, metavar=metavar, default=default, help=shown)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Build the bundle in a temporary folder, run both contestants, print the table."""
    from ...export.model_folder import export_model
    from ...graphs.bundle import build_bundle
    from ...graphs.instances import plan_instances
    from ...runtime.memory import bundle_memory
    from ..bench.compare import cold_start_seconds, compare
    from ..bench.eager_model import check_family

    with (
        tempfile.TemporaryDirectory(prefix="lopa-bench-") as name,
        show_progress(not (args.quiet or args.json)) as progress,
    ):
        folder = Path(name)
        checkpoint, title = _checkpoint(args, folder)
        model = export_model(checkpoint, folder / "model", progress=progress)
        check_family(model.model.family)
        progress("building", 0, 1)
        instances = plan_instances(args.lookahead, [args.window], [args.context], [args.context])
        manifest = build_bundle(folder / "model", folder / "bundle", instances)
        prompts = _prompts(args, folder / "bundle", manifest)
        settings = _settings(args, manifest)
        comparison = compare(
            folder / "bundle",
            checkpoint,
            prompts,
            settings,
            window=args.window,
            repeats=args.repeats,
            threads=args.threads,
            progress=lambda done, total: progress("measuring", done, total, f"of {total} pairs"),
        )
        progress("measuring cold starts", 0, 1)
        cold = cold_start_seconds(folder / "bundle", prompts[0], args.cold_starts)
        memory = bundle_memory(manifest)
        floor = memory.weights + memory.cache
    if args.json:
        print(json.dumps(_summary(title, settings, comparison, cold, floor)))
    else:
        _print(title, settings, comparison, cold, floor, args.repeats)
    return 0 if comparison.identical == comparison.prompts else 1


def _checkpoint(args: argparse.Namespace, folder: Path) -> tuple[Path, str]:
    from ...runtime.contract import LopaError

    if args.random is not None:
        if args.checkpoint is not None:
            raise LopaError("give either CHECKPOINT or --random, not both")
        from ..bench.random_model import parse_spec, write_random_checkpoint

        spec = parse_spec(args.random)
        title = f"random {args.random}, {spec.parameters / 1e6:.0f} M parameters"
        return write_random_checkpoint(folder / "checkpoint", spec), title
    if args.checkpoint is not None:
        return args.checkpoint, args.checkpoint.resolve().name
    from ..demo.run import CHECKPOINT

    return CHECKPOINT, "demo model"


def _prompts(args: argparse.Namespace, bundle: Path, manifest: BundleManifest) -> list[list[int]]:
    file = args.prompts
    if file is None and args.checkpoint is None and args.random is None:
        from ..demo.run import HELD_OUT

        file = str(HELD_OUT)
    if file is None:
        import numpy as np

        generator = np.random.default_rng(0)
        high = min(manifest.model.tokenizer_size, manifest.model.mask_token_id)
        return [
            [int(token) for token in generator.integers(0, high, PROMPT_TOKENS)]
            for _ in range(args.prompt_count)
        ]
    from ...runtime.prompt import TextCodec
    from ..prompt_lines import read_prompts

    codec = TextCodec(bundle, manifest.model.stop_token_ids)
    prompts = read_prompts(file, args.max_prompt_bytes)
    chosen = prompts[:: max(1, len(prompts) // args.prompt_count)][: args.prompt_count]
    return [
        list(item.ids) if item.ids is not None else codec.encode(item.text or "", raw=False)
        for item in chosen
    ]


def _settings(args: argparse.Namespace, manifest: BundleManifest) -> dict[str, Any]:
    return {
        "strategy": "lopa",
        "lookahead": args.lookahead,
        "block_size": args.block_size or manifest.model.block_size,
        "max_new_tokens": args.max_new_tokens,
        "add_threshold": args.add_threshold,
        "complete_threshold": args.complete_threshold,
        "confidence": args.confidence,
    }


def _machine() -> str:
    import os

    return f"{os.cpu_count()} cores {platform.machine()}, Python {platform.python_version()}"


def _versions() -> str:
    import importlib.metadata as metadata

    return ", ".join(f"{name} {metadata.version(name)}" for name in ("onnxruntime", "torch"))


def _summary(
    title: str, settings: dict[str, Any], comparison: Comparison, cold: list[float], floor: int
) -> dict[str, Any]:
    return {
        "model": title,
        "settings": settings,
        "machine": _machine(),
        "versions": _versions(),
        **asdict(comparison),
        "cold_start_seconds": cold,
        "weights_and_cache_bytes": floor,
    }


def _print(
    title: str,
    settings: dict[str, Any],
    comparison: Comparison,
    cold: list[float],
    floor: int,
    repeats: int,
) -> None:
    head = ("", "tokens/s", "ms/step", "steps", "TPF", "forwards", "rows/token", "peak memory")
    rows = [
        (
            item.name,
            f"{item.tokens_per_second:.1f}",
            f"{item.step_ms:.1f}",
            str(item.steps),
            f"{item.tokens / item.steps:.2f}",
            str(item.forwards),
            f"{item.rows / item.tokens:.0f}",
            f"{size_text(item.peak_bytes)} ({item.peak_bytes / floor:.2f}x)",
        )
        for item in (comparison.engine, comparison.baseline)
    ]
    engine = comparison.engine
    host = 1e3 * (engine.seconds - engine.engine_seconds) / engine.steps
    sections = [
        ("setting", [", ".join(f"{key} {value}" for key, value in settings.items())]),
        ("machine", [f"{_machine()}, {_versions()}"]),
        ("result", columns([head, *rows])),
        (
            "ratio",
            [
                f"{comparison.ratio:.2f}x tokens/s (median of {comparison.prompts * repeats} "
                f"pairs, {comparison.ratio_low:.2f} to {comparison.ratio_high:.2f})",
                f"identical tokens on {comparison.identical} of {comparison.prompts} prompts",
            ],
        ),
        (
            "memory",
            [f"weights once plus cache: {size_text(floor)}; peak is that of the whole process"],
        ),
        (
            "time",
            [f"{engine.step_ms - host:.1f} ms engine and {host:.2f} ms host code per step"],
        ),
    ]
    if cold:
        median = statistics.median(cold)
        sections.append(
            (
                "cold start",
                [
                    f"{median:.2f} s from import lopa to the first token (median of {len(cold)}, "
                    f"{min(cold):.2f} to {max(cold):.2f})"
                ],
            )
        )
    print_report(f"lopa bench: {title}", sections)
