"""What `lopa compare` prints: tables for people, one object for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..display.report import Section, columns, version_lines
from .bisect import BisectReport, Error
from .contestant import Contestant
from .decodes import DecodesReport
from .steps import StepsReport
from .thresholds import Check

_SHORT = 12  # digits shown of a sha256


def side_lines(side: Contestant) -> list[str]:
    """Folder, target, precision, the hashes of what was loaded, and versions."""
    fast = "" if side.fast is None else f", fast {side.fast}"
    hashes = ", ".join(f"{name} {digest[:_SHORT]}" for name, digest in side.hashes.items())
    versions = {**side.manifest.versions, **side.manifest.engine.versions}
    return [
        f"{side.folder}  {side.target} {side.precision}{fast}",
        f"sha256 {hashes}",
        *version_lines(versions),
    ]


def source_line(first: Contestant, second: Contestant) -> str:
    """Whether both were made from the same checkpoint and adapter."""
    one, two = first.manifest.source, second.manifest.source
    if (one.fingerprint, one.adapter_fingerprint) == (two.fingerprint, two.adapter_fingerprint):
        return f"both from {one.checkpoint}  {one.fingerprint[:_SHORT]}"
    return (
        f"different: {one.checkpoint} {one.fingerprint[:_SHORT]} and "
        f"{two.checkpoint} {two.fingerprint[:_SHORT]}"
    )


def step_lines(report: StepsReport) -> list[str]:
    """Errors of the outputs."""
    head = ("output", "max abs", "mean abs", "max rel", "mean rel")
    rows = [
        (name, *(f"{value:.3g}" for value in asdict(error).values()))
        for name, error in report.outputs.items()
    ]
    ran = f"run by the fast graphs: {report.fast} of {report.steps}"
    return [*columns([head, *rows]), *([ran] if report.fast else [])]


def agreement_lines(report: StepsReport) -> list[str]:
    """Agreement of the predictions."""
    found = report.agreement
    return [
        f"top-1 {_share(found.top1)} of {found.positions} masked positions, "
        f"candidates {_share(found.candidates)}",
        f"confidence drift: mean {found.drift_mean:.3g}, max {found.drift_max:.3g}, "
        f"signed {found.drift_signed:+.2g}",
        f"KL: mean {found.kl_mean:.3g}, max {found.kl_max:.3g} nats, over the kept candidates",
    ]


def decode_lines(report: DecodesReport) -> list[str]:
    """End to end."""
    lines = [
        f"tokens {_share(report.token_agreement)} the same ({report.tokens[0]} and "
        f"{report.tokens[1]}), {report.identical} of {report.prompts} answers identical",
        f"winner {_share(report.winner_agreement)} of the steps the same, "
        f"steps {report.steps[0]} and {report.steps[1]}",
    ]
    if report.right is not None:
        assert report.score_loss is not None
        lines.append(
            f"score {report.right[0]} and {report.right[1]} of {report.prompts} right, "
            f"loss {report.score_loss:g} points"
        )
    return lines


def verdict(checks: Sequence[Check]) -> Section:
    """The bounds that were not kept, or all that were."""
    missed = [item.text for item in checks if not item.kept]
    if missed:
        return "FAILED", missed
    return "passed", [", ".join(f"{item.threshold.flag} {item.expected:g}" for item in checks)]


def bisect_sections(report: BisectReport) -> list[Section]:
    """Errors along the layers, inside the layer the sides part in, and the verdict."""
    layers = [("part", "error so far", "max abs", "error of its own")]
    layers += [
        (row.name, _error(row.total), f"{row.total.max_abs:.3g}", _error(row.own))
        for row in report.layers
    ]
    sections: list[Section] = [("layers", columns(layers))]
    if report.parting is not None:
        points = [("operation", "operator", "error", "max abs")]
        points += [
            (point.operation, point.operator, _error(point.error), f"{point.error.max_abs:.3g}")
            for point in report.points
        ]
        sections.append((report.parting.layer, columns(points)))
    sections.append(("verdict", [bisect_verdict(report)]))
    return sections


def bisect_verdict(report: BisectReport) -> str:
    """Where the sides part, in one line."""
    parting, tolerance = report.parting, f"{report.tolerance:g}"
    if parting is None:
        return f"no layer parts by more than {tolerance}"
    if parting.operation is None:
        return (
            f"they part at {parting.layer}: error {_error(parting.error)}, more than {tolerance}; "
            "no operation in it is over by itself, errors of earlier layers add up"
        )
    return (
        f"they part at {parting.layer}, {parting.operation} ({parting.operator}): "
        f"error {_error(parting.error)}, more than {tolerance}"
    )


def plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become text."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _share(share: float) -> str:
    return f"{100 * share:.2f} %"


def _error(error: Error) -> str:
    return f"{error.relative:.3g}"
