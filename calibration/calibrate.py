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
from ..runtime.engines.onnxruntime import OnnxRuntimeEngine
from ..runtime.manifest import (
    TOKENIZER_FILES,
    BundleManifest,
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
from ..runtime.options import DecodeOptions
from ..runtime.staging import check_output, staged_folder
from .cache import CachePlan, plan_cache, read_cache_ranges
from .fidelity import Predicted, predict
from .gate import Gate, Kept, raise_sites
from .plan import SitePlan, plan_site
from .ranges import Origin, RangeFile, RowSamples, channels_of, collect_ranges
from .recipe import EMBEDDING, Recipe
from .rewrite import Rewritten, rewrite
from .sensitivity import Sensitivity, measure_sites
from .session import open_session
from .sites import Site, StepGraph, find_sites
from .states import TYPICAL, RecordingEngine, StateFolder, States
from .trajectories import (
    AnswerFile,
    Decodes,
    calibration_bundle,
    rare_settings,
    record_rare,
    record_typical,
    typical_settings,
)

DATA_FILE = "weights.data"
RANGE_FILE, SENSITIVITY_FILE, ANSWER_FILE = "ranges.json", "sensitivity.json", "answers.json"
PRECISIONS = ("fp32", "fp16")
SAMPLES, DECODES, SENSITIVITY_STATES = 96, 128, 32
RARE_SHARE = 3  # one in this many of the recorded steps

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Settings:
    """What is measured: recorded steps, whole decodes, length of the answers, cache slots."""

    samples: int = SAMPLES
    decodes: int = DECODES
    new_tokens: int | None = None
    context: int | None = None
    sensitivity_states: int = SENSITIVITY_STATES


@dataclass(frozen=True)
class Calibrated:
    """The written model and what was measured on the way."""

    manifest: ModelManifest
    recipe: Recipe
    plans: tuple[SitePlan, ...]
    cache: CachePlan | None
    sensitivities: tuple[Sensitivity, ...]
    kept: Kept
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
            "decodes": settings.decodes,
            "new_tokens": settings.new_tokens,
            "context": settings.context,
        },
    )
    channels = {site.name: channels_of(graph, site) for site in sites}
    work.mkdir(parents=True, exist_ok=True)
    ranges = RangeFile(work / RANGE_FILE, origin, channels)
    ranges.save()  # claims the folder
    states, answers = StateFolder(work / "states"), AnswerFile(work / ANSWER_FILE)
    bundle = calibration_bundle(manifest, settings.context)
    decodes = _record(folder, bundle, prompts, settings, states, answers, progress)
    samples = RowSamples(work / "rows", channels, len(states.names()))
    collect_ranges(graph, sites, states, ranges, samples, progress)
    plans = _plan(graph, sites, recipe, ranges, samples, progress)
    embedding = recipe.rule(EMBEDDING).precision
    typical = States(states, tuple(states.names(TYPICAL)))
    references = _references(graph, typical, progress)
    sensitivities = []
    if settings.sensitivity_states:
        few = typical.spread(settings.sensitivity_states)
        chosen = dict(zip(typical.names, references, strict=True))
        some = [chosen[name] for name in few.names]
        file = work / SENSITIVITY_FILE
        sensitivities = measure_sites(graph, plans, few, some, file, progress)
    cache = _plan_cache(graph, recipe, states, progress)
    quantization = Quantization(
        recipe=recipe.name,
        rules=recipe.lines(),
        layers={},
        agreement=0.0,
        states=len(typical),
        prompts_sha256=origin.prompts_sha256,
        model_sha256=origin.model_sha256,
        cache=None if cache is None else "int8",
    )
    bundle = replace(bundle, quantization=quantization)
    gate = Gate(
        graph, bundle, embedding, cache, typical, references, decodes, answers.answers, work
    )
    plans, kept = raise_sites(
        plans,
        sensitivities,
        recipe,
        lambda tried: gate.measure(tried, recipe, progress),
        progress,
    )
    quantization = replace(
        quantization, layers=_layers(plans, embedding), agreement=kept.steps.agreement
    )
    rewritten = rewrite(graph, plans, embedding, cache)
    written = _write(graph, manifest, rewritten, quantization, out, force, progress)
    return Calibrated(
        written,
        recipe,
        tuple(plans),
        cache,
        tuple(sensitivities),
        kept,
        dict(states.strata()),
        tuple(integer_findings(out, written)),
        sum(record.bytes for record in manifest.files.values()),
    )


def _record(
    folder: Path,
    bundle: BundleManifest,
    prompts: Sequence[Sequence[int]],
    settings: Settings,
    states: StateFolder,
    answers: AnswerFile,
    progress: Progress,
) -> Decodes:
    """Decode with the original model: fill `states` and `answers`; returns the typical decodes."""

    def plan(chosen: Sequence[DecodeOptions], count: int) -> Decodes:
        return Decodes.plan(bundle, prompts, chosen, settings.new_tokens, count)

    attention = bundle.model.window_attention
    decodes = plan(typical_settings(attention), settings.decodes)
    rare = plan(rare_settings(attention), len(prompts))
    engine = OnnxRuntimeEngine(folder, bundle)
    recorder = RecordingEngine(engine, bundle.model.mask_token_id, states)
    common = settings.samples - settings.samples // RARE_SHARE
    record_typical(recorder, bundle, decodes, common, answers, progress)
    record_rare(recorder, bundle, rare, settings.samples, progress)
    return decodes


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


def _plan_cache(
    graph: StepGraph, recipe: Recipe, states: StateFolder, progress: Progress
) -> CachePlan | None:
    rule = recipe.cache
    if rule.precision == "model":
        return None
    every = States(states, tuple(states.names()))
    return plan_cache(read_cache_ranges(graph, every, progress), rule.method)


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
    rewritten: Rewritten,
    quantization: Quantization,
    out: Path,
    force: bool,
    progress: Progress,
) -> ModelManifest:
    with staged_folder(out, force) as stage:
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
