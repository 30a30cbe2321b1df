"""A run: everything decoded and graded, each sample in its folder's log as soon as it is there."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...runtime.options import DecodeOptions
from ...runtime.session import Session
from ..decode_flags import open_session
from ..interrupt import resumable
from ..parallel import open_parallel
from .evaluate import Encoded, Variant, encode_suite, evaluate, share_settings
from .record import new_summary, open_run
from .samples import FILE, Sample, SampleLog
from .score_bar import show_scores
from .suite import Selection, load_suite
from .variants import check_variants


@dataclass(frozen=True)
class Run:
    """What is decoded, checked and encoded, and the summary as far as it is known before."""

    session: Session
    variants: list[Variant]
    encoded: list[Encoded]
    summary: dict[str, Any]


def prepare_run(
    args: argparse.Namespace,
    options: DecodeOptions,
    variants: Sequence[Variant],
    selection: Selection,
    field: str | None,
    **settings: Any,
) -> Run:
    """Read the problems, open the bundle and check everything before the first decode.

    `field` is what the variants vary; `settings` are recorded with those of the decodes, and
    `skip_long` among them leaves out what does not fit, `parallel` is how many are decoded at the
    same time. Raises LopaError.
    """
    shared = share_settings(options, variants)
    suite = load_suite(args.task, selection)
    session = open_parallel(args, settings.get("parallel", 1), open_session)
    check_variants(shared, session.manifest)
    skips = bool(settings.get("skip_long"))
    encoded, skipped = encode_suite(session, suite, shared, selection.raw, skips)
    engine = {"provider": args.provider, "threads": args.threads, **settings}
    swept = None
    if field is not None:
        swept = {"field": field, "values": [variant.value for variant in shared]}
    summary = new_summary(session, suite, options, selection, engine, swept)
    return Run(session, shared, encoded, {**summary, "skipped": skipped})


def score_all(
    run: Run, folder: Path | None, *, resume: bool, force: bool, shown: bool
) -> tuple[dict[str, Any], list[Sample]]:
    """Decode what `folder` does not have yet; returns the summary of the run and all its samples.

    Without a folder nothing is kept. `shown` shows the progress. Raises LopaError when the folder
    may not be written or has another run (`open_run`).
    """
    summary, before = run.summary, list[Sample]()
    if folder is not None:
        summary, before = open_run(folder, summary, resume, force)
    total = len(run.encoded) * len(run.variants)
    with (
        contextlib.closing(SampleLog(folder and folder / FILE, before)) as log,
        resumable("the same command with --resume goes on", lambda: folder is not None),
        show_scores(total, before, shown) as progress,
    ):
        evaluate(run.session, run.encoded, run.variants, log, progress)
    return summary, log.samples
