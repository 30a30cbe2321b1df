"""Quantise a model: measure it while it decodes, write a model folder with integers.

A Hugging Face folder is exported first. The prompts are decoded by several strategies, with and
without lookahead branches, and the steps on the way, from fully masked to almost done, give the
ranges. Products whose quantisation changes too many tokens are kept higher.

A run that was stopped goes on where it was: recorded steps, ranges and measurements are kept in the
work folder.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..arguments import natural, positive
from ..display.progress import show_progress
from ..display.report import columns, file_lines, print_report, size_text, total_bytes
from ..source_plan import PRECISIONS, SourcePlan, add_write_flags, exported_model, plan_source

if TYPE_CHECKING:
    from ...calibration.calibrate import Calibrated
    from ...calibration.recipe import Recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `lopa calibrate`."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        type=Path,
        help="model folder made by lopa export, or Hugging Face folder",
    )
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        required=True,
        help='what to decode: lines {"prompt": "..."} or {"prompt_ids": [...]}, - is stdin',
    )
    parser.add_argument(
        "-o", "--output", metavar="MODEL_INT8", type=Path, required=True, help="folder to write"
    )
    parser.add_argument(
        "--recipe",
        metavar="NAME",
        default="int8",
        help="int8 (default), int8-kv, int8-weight, int4-weight, or a .toml file of rules",
    )
    parser.add_argument(
        "--samples", metavar="N", type=positive, default=96, help="decode steps to record (96)"
    )
    parser.add_argument(
        "--decodes",
        metavar="N",
        type=positive,
        default=128,
        help="whole decodes to compare; LoPA and its base take turns on the prompts (128)",
    )
    parser.add_argument(
        "--sensitivity",
        metavar="N",
        type=natural,
        default=32,
        help="steps on which every site is quantised alone; 0 leaves that out (default 32)",
    )
    parser.add_argument(
        "--max-new-tokens", metavar="N", type=positive, help="of the decodes (default: as generate)"
    )
    parser.add_argument(
        "--context",
        metavar="C",
        type=positive,
        help="cache slots of the decodes (default 1024, or what the model has)",
    )
    parser.add_argument(
        "--raw", action="store_true", help="prompts as they are, without the chat template"
    )
    parser.add_argument(
        "--work",
        metavar="DIR",
        type=Path,
        help="recorded steps, ranges and measurements (default: MODEL_INT8.calibration)",
    )
    parser.add_argument("--adapter", metavar="DIR", type=Path, help="PEFT LoRA folder to merge")
    parser.add_argument(
        "--precision", choices=PRECISIONS, help="of what is not quantised (default: fp32)"
    )
    parser.add_argument(
        "--candidates", metavar="K", type=positive, help="kept per position (default 8)"
    )
    add_write_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Calibrate, or show the plan."""
    from ...calibration.calibrate import Settings, calibrate
    from ...calibration.recipe import find_recipe

    started = time.perf_counter()
    shown = not (args.quiet or args.json)
    recipe = find_recipe(args.recipe)
    work = args.work or args.output.with_name(f"{args.output.name}.calibration")
    plan = plan_source(
        args.model, args.adapter, args.precision, args.candidates, args.output, args.force
    )
    if args.dry_run:
        _print_plan(plan, recipe, work, args)
        return 0
    with show_progress(shown) as progress, exported_model(plan, args.output, progress) as model:
        prompts = _encode(model, args.prompts, args.raw)
        settings = Settings(
            args.samples, args.decodes, args.max_new_tokens, args.context, args.sensitivity
        )
        done = calibrate(
            model,
            args.output,
            prompts,
            recipe,
            work,
            settings,
            args.force,
            lambda stage, done, total: progress(stage, done, total, f"of {total}"),
        )
    picture = _draw(done, work)
    _print_summary(done, recipe, work, picture, args, time.perf_counter() - started)
    return 0


def _encode(folder: Path, file: str, raw: bool) -> list[list[int]]:
    """Read the prompts with the model's own tokenizer."""
    from ...runtime.manifest import read_model
    from ...runtime.prompt import TextCodec
    from ..prompt_lines import Prompt, check_prompts, read_prompts

    codec = TextCodec(folder, read_model(folder).model.stop_token_ids)

    def encode(prompt: Prompt) -> list[int]:
        return list(prompt.ids) if prompt.ids is not None else codec.encode(prompt.text or "", raw)

    return check_prompts(read_prompts(file), encode)


def _draw(done: Calibrated, work: Path) -> Path | None:
    """Draw the sensitivities when matplotlib is there and something was measured."""
    if not done.sensitivities:
        return None
    from ..calibration_picture import draw_sensitivities

    return draw_sensitivities(done.sensitivities, done.plans, work / "sensitivity.png")


def _print_plan(plan: SourcePlan, recipe: Recipe, work: Path, args: argparse.Namespace) -> None:
    if args.json:
        about = {"dry_run": True, "output": str(args.output), "work": str(work)}
        print(json.dumps({**about, **plan.summary(), "recipe": recipe.data()}))
        return
    print_report(
        f"would calibrate {args.output}",
        [*plan.sections(), ("recipe", [recipe.name, *recipe.lines()]), ("work", [str(work)])],
    )


def _print_summary(
    done: Calibrated,
    recipe: Recipe,
    work: Path,
    picture: Path | None,
    args: argparse.Namespace,
    seconds: float,
) -> None:
    if args.json:
        print(json.dumps(_summary(done, args, work, seconds)))
        return
    if args.quiet:
        return
    shrunk = total_bytes(done.manifest.files) / done.source_bytes
    print_report(
        f"calibrated {args.output}",
        [
            ("recipe", [recipe.name, *recipe.lines()]),
            ("states", _state_lines(done)),
            ("precision", _precision_lines(done)),
            ("sites", site_lines(done)),
            ("cache", [] if done.cache is None else list(done.cache.lines)),
            ("fidelity", _fidelity_lines(done)),
            ("integers", list(done.findings) or ["every quantised product runs as its precision"]),
            ("files", [*file_lines(done.manifest.files), f"{shrunk:.1%} of the original"]),
            ("work", [f"{work} ({size_text(_size(work))}; makes the next recipe quicker)"]),
            ("picture", [] if picture is None else [str(picture)]),
            ("seconds", [f"{seconds:.1f}"]),
            ("next", [f"lopa build {args.output} -o BUNDLE"]),
        ],
    )


def site_lines(done: Calibrated) -> list[str]:
    """One line per site: what was chosen for it and what it costs when quantised alone."""
    alone = {item.site: item for item in done.sensitivities}
    rows = [("site", "precision", "range", "smooth", "SNR dB", "tokens kept", "log-prob drift")]
    for plan in done.plans:
        measured = alone.get(plan.site.name)
        fidelity = None if measured is None else measured.fidelity
        snr = plan.snr_db if measured is None else measured.snr_db
        rows.append(
            (
                plan.site.name,
                "/".join(dict.fromkeys(plan.precisions.values())),
                plan.method or "-",
                "-" if plan.exponent is None else f"{plan.exponent:g}",
                "-" if snr is None else f"{snr:.1f}",
                "-" if fidelity is None else f"{fidelity.agreement:.2%}",
                "-" if fidelity is None else f"{fidelity.drift:.5f}",
            )
        )
    return columns(rows)


def _state_lines(done: Calibrated) -> list[str]:
    total = sum(done.strata.values())
    kinds = [f"{label} {count}" for label, count in sorted(done.strata.items())]
    lines = [f"{total} steps; cached or prefill, branches, tenths of the window masked:"]
    return lines + [", ".join(kinds[start : start + 6]) for start in range(0, len(kinds), 6)]


def _precision_lines(done: Calibrated) -> list[str]:
    assert done.manifest.quantization is not None
    counts = done.manifest.quantization.counts
    lines = [", ".join(f"{count} {name}" for name, count in counts.items())]
    kept = [f"{plan.site.name} kept higher: {plan.reason}" for plan in done.plans if plan.reason]
    return lines + kept


def _fidelity_lines(done: Calibrated) -> list[str]:
    kept, recipe = done.kept, done.recipe
    lines = [
        f"{kept.steps.agreement:.2%} of {kept.steps.rows} predictions have the same likeliest "
        f"token, {kept.steps.decisions:.2%} lead to the same decision at confidence 0.9",
        f"their log-probabilities drift by {kept.steps.drift:.5f} nats on average",
    ]
    if kept.tokens is not None:
        lines.append(
            f"{kept.tokens:.2%} of the tokens of whole decodes are the same "
            f"(standard error {kept.noise:.2%})"
        )
    if not kept.reaches(recipe):
        lines.append(
            f"the recipe wants {recipe.agreement:.2%}, a drift of {recipe.drift:g} nats at most "
            f"and {recipe.tokens:.2%} of the tokens, which float activations do not reach either"
        )
    return lines


def _summary(
    done: Calibrated, args: argparse.Namespace, work: Path, seconds: float
) -> dict[str, Any]:
    assert done.manifest.quantization is not None
    return {
        "output": str(args.output),
        "work": str(work),
        "recipe": done.manifest.quantization.recipe,
        "precisions": done.manifest.quantization.counts,
        "fidelity": {**vars(done.kept.steps), "tokens": done.kept.tokens, "noise": done.kept.noise},
        "cache": [] if done.cache is None else list(done.cache.lines),
        "findings": list(done.findings),
        "strata": done.strata,
        "files": {name: record.bytes for name, record in done.manifest.files.items()},
        "bytes": total_bytes(done.manifest.files),
        "source_bytes": done.source_bytes,
        "seconds": round(seconds, 3),
    }


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
