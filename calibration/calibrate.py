"""`lopa calibrate`: a model folder becomes a quantised model folder."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..graphs.lint import check_graph
from ..graphs.targets.integer_lint import integer_findings
from ..graphs.weight_file import write_pieces
from ..runtime.contract import LopaError
from ..runtime.engines.onnxruntime.program import OnnxRuntimeProgram
from ..runtime.manifest import (
    TOKENIZER_FILES,
    BundleManifest,
    GraphInfo,
    ModelManifest,
    model_hash,
    read_model,
    record_files,
    verify_files,
    write_manifest,
)
from ..runtime.quantization import Quantization, QuantizedLayer
from ..runtime.staging import check_output, staged_folder
from .cache import CachePlan, plan_cache, read_cache_ranges
from .fidelity import Predicted, predict
from .gate import Gate, Kept, raise_sites
from .plan import SitePlan, plan_site
from .progress import Progress
from .ranges import Origin, RangeFile, RowSamples, collect_ranges
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
from .work_folder import ANSWER_FILE, ROWS, SENSITIVITY_FILE, STATES, claimed_work

DATA_FILE = "weights.data"
PRECISIONS = ("fp32", "fp16")
SAMPLES, DECODES, SENSITIVITY_STATES = 96, 128, 32
RARE_SHARE = 3  # one in this many of the recorded steps
ENOUGH = 0.75  # of the steps asked for


class CalibrationWarning(UserWarning):
    """Something that makes what was measured less certain."""


@dataclass(frozen=True)
class Settings:
    """What is measured: recorded steps, whole decodes, length of the answers, cache slots."""

    samples: int = SAMPLES
    decodes: int = DECODES
    new_tokens: int | None = None
    context: int | None = None
    sensitivity_states: int = SENSITIVITY_STATES

    @property
    def typical(self) -> int:
        """How many of the recorded steps are typical ones; the others are rare."""
        return self.samples - self.samples // RARE_SHARE

    def origin(self, prompts: Sequence[Sequence[int]], model_sha256: str | None = None) -> Origin:
        """What the recorded steps belong to; without the hash of a model, whatever the model."""
        return Origin(
            model_sha256,
            prompts_hash(prompts),
            {
                "samples": self.samples,
                "decodes": self.decodes,
                "new_tokens": self.new_tokens,
                "context": self.context,
            },
        )


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
    warnings: tuple[str, ...]  # what makes the measurements less certain
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
    there; `force` discards those of other prompts or settings. Raises LopaError; `out` is then as
    it was before. Warns when few steps were recorded.
    """
    settings = settings or Settings()
    check_output(out, force, folder, work)
    manifest = read_model(folder)
    verify_files(folder, manifest.files)
    check_precision(folder, manifest.graph.precision)
    graph = StepGraph(folder, manifest.graph.file)
    sites = find_sites(graph)
    if not sites:
        raise LopaError(f"{folder} has no matrix products with stored weights")
    bundle = calibration_bundle(manifest, settings.context)
    attention, new_tokens = manifest.model.window_attention, settings.new_tokens
    typical = typical_settings(attention)
    decodes = Decodes.plan(bundle, prompts, typical, new_tokens, settings.decodes)
    rare = Decodes.plan(bundle, prompts, rare_settings(attention), new_tokens, len(prompts))
    model_sha256 = model_hash(manifest)
    origin = settings.origin(prompts, model_sha256)
    channels = {site.name: graph.depth(site.products[0]) for site in sites}
    with claimed_work(work, origin, channels, force) as ranges:
        states, answers = StateFolder(work / STATES), AnswerFile(work / ANSWER_FILE)
        _record(folder, bundle, (decodes, rare), settings, states, answers, progress)
    warned = _shortage(states, settings, len(decodes))
    for text in warned:
        warnings.warn(text, CalibrationWarning, stacklevel=2)
    samples = RowSamples(work / ROWS, channels, len(states.names()))
    collect_ranges(graph, sites, states, ranges, samples, progress)
    plans = _plan(graph, sites, recipe, ranges, samples, progress)
    embedding = recipe.rule(EMBEDDING).precision
    measured = States(states, tuple(states.names(TYPICAL)))
    references = _references(graph, measured, progress)
    sensitivities = []
    if settings.sensitivity_states:
        few = measured.spread(settings.sensitivity_states)
        chosen = dict(zip(measured.names, references, strict=True))
        some = [chosen[name] for name in few.names]
        file = work / SENSITIVITY_FILE
        sensitivities = measure_sites(graph, plans, few, some, file, progress)
    cache = _plan_cache(graph, recipe, states, progress)
    quantization = Quantization(
        recipe=recipe.name,
        rules=recipe.lines(),
        layers={},
        agreement=0.0,
        states=len(measured),
        prompts_sha256=origin.prompts_sha256,
        model_sha256=model_sha256,
        cache=None if cache is None else "int8",
    )
    bundle = replace(bundle, quantization=quantization)
    gate = Gate(
        graph, bundle, embedding, cache, measured, references, decodes, answers.answers, work
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
        warned,
        sum(record.bytes for record in manifest.files.values()),
    )


def _record(
    folder: Path,
    bundle: BundleManifest,
    decodes: tuple[Decodes, Decodes],
    settings: Settings,
    states: StateFolder,
    answers: AnswerFile,
    progress: Progress,
) -> None:
    """Run the typical and the rare decodes with the original model: fill `states` and `answers`."""
    typical, rare = decodes
    engine = OnnxRuntimeProgram(folder, bundle).decode_state()
    recorder = RecordingEngine(engine, bundle.model.mask_token_id, states)
    record_typical(recorder, bundle, typical, settings.typical, answers, progress)
    record_rare(recorder, bundle, rare, settings.samples, progress)


def check_precision(folder: Path, precision: str) -> None:
    """Raise LopaError for a model that the CPU cannot run."""
    if precision not in PRECISIONS:
        raise LopaError(
            f"{folder} is {precision}, which the CPU that measures it cannot run; "
            f"export it with --precision {' or '.join(PRECISIONS)}"
        )


def prompts_hash(prompts: Sequence[Sequence[int]]) -> str:
    """The sha256 (hex) of the token ids of all prompts."""
    return hashlib.sha256(json.dumps([list(ids) for ids in prompts]).encode()).hexdigest()


def _shortage(states: StateFolder, settings: Settings, decodes: int) -> tuple[str, ...]:
    """Say so when far fewer steps were recorded than asked for."""
    found, typical = len(states.names()), len(states.names(TYPICAL))
    if found >= ENOUGH * settings.samples and typical >= ENOUGH * settings.typical:
        return ()
    more = "a larger --decodes" if decodes == settings.decodes else "more prompts"
    return (
        f"recorded {found} of {settings.samples} steps, {typical} of {settings.typical} typical "
        f"ones: what is measured on so few is uncertain; give {more} or a larger --max-new-tokens",
    )


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
    session = open_session(graph.model, graph.folder)
    found = []
    for number, feeds in enumerate(states):
        progress("running the original model", number, len(states))
        found.append(predict(session, feeds))
    return found


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
