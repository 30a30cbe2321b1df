"""`lopa calibrate`: a model folder becomes a quantised model folder."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..graphs.lint import check_graph
from ..graphs.targets.integer_lint import integer_findings
from ..graphs.weight_file import write_pieces
from ..runtime.contract import LopaError
from ..runtime.manifest import (
    TOKENIZER_FILES,
    GraphInfo,
    ModelManifest,
    Quantization,
    QuantizedLayer,
    model_hash,
    read_model,
    record_files,
    verify_files,
    write_manifest,
)
from ..runtime.staging import check_output, staged_folder
from .fidelity import Fidelity, Predicted, predict
from .plan import SitePlan, plan_site
from .ranges import Origin, RangeFile, RowSamples, channels_of, collect_ranges
from .recipe import EMBEDDING, Recipe
from .rewrite import rewrite
from .sensitivity import Sensitivity, measure_sites, quantised_fidelity, raise_sites
from .session import open_session
from .sites import Site, StepGraph, find_sites
from .states import StateFolder, States
from .trajectories import calibration_bundle, record_states

DATA_FILE = "weights.data"
RANGE_FILE, SENSITIVITY_FILE = "ranges.json", "sensitivity.json"
PRECISIONS = ("fp32", "fp16")
SAMPLES, SENSITIVITY_STATES = 64, 16

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Settings:
    """What decides which steps are recorded: number, length of the answers, cache slots."""

    samples: int = SAMPLES
    new_tokens: int | None = None
    context: int | None = None
    sensitivity_states: int = SENSITIVITY_STATES


@dataclass(frozen=True)
class Calibrated:
    """The written model and what was measured on the way."""

    manifest: ModelManifest
    recipe: Recipe
    plans: tuple[SitePlan, ...]
    sensitivities: tuple[Sensitivity, ...]
    fidelity: Fidelity
    strata: dict[str, int]
    findings: tuple[str, ...]  # products that would not run in integers
    source_bytes: int  # of the model it was made from


def calibrate(
    folder: Path,
    out: Path,
    prompts: Sequence[Sequence[int]],
    recipe: Recipe,
    work: Path,
    settings: Settings | None = None,
    force: bool = False,
    progress: Progress = lambda stage, done, total: None,
) -> Calibrated:
    """Quantise the model folder `folder` into `out`.

    Recorded steps, ranges and measurements are kept in `work`: a run that was stopped goes on from
    there. Raises LopaError; `out` is then as it was before.
    """
    settings = settings or Settings()
    check_output(out, force, folder, work)
    manifest = read_model(folder)
    verify_files(folder, manifest.files)
    if manifest.graph.precision not in PRECISIONS:
        raise LopaError(
            f"{folder} is {manifest.graph.precision}, which the CPU that measures it cannot run; "
            f"export it with --precision {' or '.join(PRECISIONS)}"
        )
    graph = StepGraph(folder, manifest.graph.file)
    sites = find_sites(graph)
    if not sites:
        raise LopaError(f"{folder} has no matrix products with stored weights")
    origin = Origin(
        model_hash(manifest),
        prompts_hash(prompts),
        {
            "samples": settings.samples,
            "new_tokens": settings.new_tokens,
            "context": settings.context,
        },
    )
    channels = {site.name: channels_of(graph, site) for site in sites}
    work.mkdir(parents=True, exist_ok=True)
    ranges = RangeFile(work / RANGE_FILE, origin, channels)
    ranges.save()  # claims the folder
    states = StateFolder(work / "states")
    bundle = calibration_bundle(manifest, settings.context)
    record_states(folder, bundle, prompts, settings.new_tokens, settings.samples, states, progress)
    samples = RowSamples(work / "rows", channels, len(states.names()))
    collect_ranges(graph, sites, states, ranges, samples, progress)
    plans = _plan(graph, sites, recipe, ranges, samples, progress)
    embedding = recipe.rule(EMBEDDING).precision
    every = states.subset(len(states.names()))
    references = _references(graph, every, progress)
    sensitivities = []
    if settings.sensitivity_states:
        few = states.subset(settings.sensitivity_states)
        chosen = dict(zip(every.names, references, strict=True))
        some = [chosen[name] for name in few.names]
        file = work / SENSITIVITY_FILE
        sensitivities = measure_sites(graph, plans, few, some, file, progress)
    progress("measuring the quantised model", 0, 1)
    plans, fidelity = raise_sites(
        plans,
        sensitivities,
        recipe,
        lambda tried: quantised_fidelity(graph, tried, embedding, every, references),
        progress,
    )
    quantization = Quantization(
        recipe=recipe.name,
        rules=recipe.lines(),
        layers=_layers(plans, embedding),
        agreement=fidelity.agreement,
        states=len(every),
        prompts_sha256=origin.prompts_sha256,
        model_sha256=origin.model_sha256,
    )
    written = _write(graph, manifest, plans, embedding, quantization, out, force, progress)
    return Calibrated(
        written,
        recipe,
        tuple(plans),
        tuple(sensitivities),
        fidelity,
        dict(states.strata()),
        tuple(integer_findings(out, written)),
        sum(record.bytes for record in manifest.files.values()),
    )


def prompts_hash(prompts: Sequence[Sequence[int]]) -> str:
    """The sha256 (hex) of the token ids of all prompts."""
    return hashlib.sha256(json.dumps([list(ids) for ids in prompts]).encode()).hexdigest()


def _plan(
    graph: StepGraph,
    sites: Sequence[Site],
    recipe: Recipe,
    ranges: RangeFile,
    samples: RowSamples,
    progress: Progress,
) -> list[SitePlan]:
    plans = []
    for index, site in enumerate(sites):
        progress("choosing ranges", index, len(sites))
        seen = ranges.tensors[site.name]
        plans.append(plan_site(graph, site, recipe, seen, samples.read(site.name)))
    return plans


def _references(graph: StepGraph, states: States, progress: Progress) -> list[Predicted]:
    progress("running the original model", 0, 1)
    session = open_session(graph.model, graph.folder)
    return [predict(session, feeds) for feeds in states]


def _layers(plans: Sequence[SitePlan], embedding: str) -> dict[str, QuantizedLayer]:
    layers = {EMBEDDING: QuantizedLayer(embedding, None, None, "")}
    for plan in plans:
        for name, precision in plan.precisions.items():
            integer = precision == "int8"
            layers[name] = QuantizedLayer(
                precision,
                plan.method if integer else None,
                plan.exponent if integer else None,
                plan.reason,
            )
    return layers


def _write(
    graph: StepGraph,
    manifest: ModelManifest,
    plans: Sequence[SitePlan],
    embedding: str,
    quantization: Quantization,
    out: Path,
    force: bool,
    progress: Progress,
) -> ModelManifest:
    with staged_folder(out, force) as stage:
        rewritten = rewrite(graph, plans, embedding)
        file = manifest.graph.file
        write_pieces(
            rewritten.model,
            rewritten.pieces,
            stage / file,
            stage / DATA_FILE,
            lambda done, total: progress("writing", done, total),
        )
        check_graph(rewritten.model, file)
        names = [file, DATA_FILE]
        for name in TOKENIZER_FILES:
            if name in manifest.files:
                shutil.copyfile(graph.folder / name, stage / name)
                names.append(name)
        (opset,) = (item.version for item in rewritten.model.opset_import if not item.domain)
        written = replace(
            manifest,
            graph=GraphInfo(file, manifest.graph.precision, opset),
            files=record_files(stage, names),
            quantization=quantization,
        )
        write_manifest(stage, written)
    return written
