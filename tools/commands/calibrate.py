"""Quantise a model: measure it while it decodes, write a model folder with integers.

A Hugging Face folder is exported first. The prompts are decoded by several strategies, with and
without lookahead branches, and the steps on the way, from fully masked to almost done, give the
ranges. Products whose quantisation changes too many tokens are kept higher.

A run that was stopped goes on where it was: recorded steps, ranges and measurements are kept in the
work folder.
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

from ...runtime.manifest import TOKENIZER_FILES, read_model, verify_files
from ...runtime.staging import check_output
from ..arguments import natural, positive
from ..display.progress import show_progress
from ..display.report import columns, file_lines, print_report, size_text, total_bytes
from ..interrupt import resumable
from ..paths import file_or_stdin, output_folder, path, recipe_file, work_folder
from ..prompt_lines import Prompt, add_prompt_limit, check_prompts, read_prompts
from ..source_plan import PRECISIONS, SourcePlan, add_write_flags, exported_model, plan_source

if TYPE_CHECKING:
    from ...calibration.calibrate import Calibrated, Settings
    from ...calibration.recipe import Recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `lopa calibrate`."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        type=path,
        help="model folder made by lopa export, or Hugging Face folder",
    )
    parser.add_argument(
        "--prompts",
        metavar="FILE",
        type=file_or_stdin,
        required=True,
        help='what to decode: lines {"prompt": "..."} or {"prompt_ids": [...]}, - is stdin',
    )
    add_prompt_limit(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="MODEL_INT8",
        type=output_folder,
        required=True,
        help="folder to write",
    )
    parser.add_argument(
        "--recipe",
        metavar="NAME",
        type=recipe_file,
        default="int8",
        help="int8 (default), int8-kv, int8-weight, int4-weight, or a .toml file of rules",
    )
    parser.add_argument(
        "--samples",
        metavar="N",
        type=positive,
        default=96,
        help="decode steps to record (96; 32 prompts or more give that many)",
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
        type=work_folder,
        help="recorded steps, ranges and measurements (default: MODEL_INT8.calibration)",
    )
    parser.add_argument("--adapter", metavar="DIR", type=path, help="PEFT LoRA folder to merge")
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
    from ...calibration.work_folder import keeps_work

    started = time.perf_counter()
    shown = not (args.quiet or args.json)
    recipe = find_recipe(args.recipe)
    settings = Settings(
        args.samples, args.decodes, args.max_new_tokens, args.context, args.sensitivity
    )
    work = args.work or _work_beside(args.output)
    plan = plan_source(
        args.model, args.adapter, args.precision, args.candidates, args.output, args.force
    )
    prompts = _check(plan, settings, work, args)
    if args.dry_run:
        _print_plan(plan, recipe, work, args)
        return 0
    origin = settings.origin(prompts)
    with (
        resumable("the same command goes on", lambda: keeps_work(work, origin)),
        show_progress(shown) as progress,
        exported_model(plan, args.output, progress) as model,
    ):
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


def _work_beside(output: Path) -> Path:
    """MODEL_INT8.calibration."""
    named = output if output.name not in ("", "..") else output.resolve()
    return named.with_name(f"{named.name}.calibration")


def _check(
    plan: SourcePlan, settings: Settings, work: Path, args: argparse.Namespace
) -> list[list[int]]:
    """Check before the export what can be; returns the token ids of the prompts."""
    from ...calibration.calibrate import check_precision
    from ...calibration.trajectories import check_prompt, every_setting, planned_bundle
    from ...calibration.work_folder import check_work
    from ...runtime.prompt import TextCodec

    check_output(args.output, args.force, work)
    check_precision(plan.folder, plan.precision)
    bundle = planned_bundle(plan.model, settings.context)
    decodes = every_setting(plan.model, settings.new_tokens)
    with _tokenizer(plan) as folder:
        codec: TextCodec | None = None

        def encode(prompt: Prompt) -> list[int]:
            nonlocal codec
            if prompt.ids is not None:
                ids = list(prompt.ids)
            else:
                codec = codec or TextCodec(folder, plan.model.stop_token_ids)
                ids = codec.encode(prompt.text or "", args.raw)
            for setting in decodes:
                check_prompt(ids, setting, bundle)
            return ids

        prompts = check_prompts(read_prompts(args.prompts, args.max_prompt_bytes), encode)
    check_work(work, settings.origin(prompts), args.force)
    return prompts


@contextlib.contextmanager
def _tokenizer(plan: SourcePlan) -> Iterator[Path]:
    """Yield a folder with the tokenizer that the exported model will have."""
    if plan.kind == "model folder":
        files = read_model(plan.folder).files
        verify_files(plan.folder, {name: files[name] for name in TOKENIZER_FILES if name in files})
        yield plan.folder
        return
    from ...export.tokenizer_files import copy_tokenizer

    with tempfile.TemporaryDirectory() as name:
        copy_tokenizer(plan.folder, Path(name))
        yield Path(name)


def _draw(done: Calibrated, work: Path) -> Path | None:
    """Draw the sensitivities when matplotlib is there and something was measured."""
    if not done.sensitivities:
        return None
    from ...calibration.work_folder import PICTURE_FILE
    from ..calibration_picture import draw_sensitivities

    return draw_sensitivities(done.sensitivities, done.plans, work / PICTURE_FILE)


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
            ("fidelity", fidelity_lines(done)),
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


def fidelity_lines(done: Calibrated) -> list[str]:
    """Say what the quantised model keeps, and when that is less than the recipe wants."""
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
        quantized = any(plan.integer or plan.reason for plan in done.plans)
        lines.append(
            f"the recipe wants {recipe.agreement:.2%}, a drift of {recipe.drift:g} nats at most "
            f"and {recipe.tokens:.2%} of the tokens, which "
            + (
                "float activations do not reach either"
                if quantized
                else "is not reached: the activations are floats already"
            )
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
        "warnings": list(done.warnings),
        "files": {name: record.bytes for name, record in done.manifest.files.items()},
        "bytes": total_bytes(done.manifest.files),
        "source_bytes": done.source_bytes,
        "seconds": round(seconds, 3),
    }


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
