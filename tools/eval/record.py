"""The folder of a run: what it was made with, and whether it may be continued."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ... import __version__
from ...runtime.contract import LopaError
from ...runtime.manifest import BUNDLE_FILE, sha256_of
from ...runtime.options import DecodeOptions
from ...runtime.session import Session
from ...runtime.staging import check_output, write_whole
from .samples import FILE, Sample, resume_samples
from .sandbox import describe
from .suite import Selection, TaskSet

SCHEMA_VERSION = 1
SUMMARY, SWEEP, CURVE = "summary.json", "sweep.json", "sweep.png"
TUNED, SETTINGS = "tune.json", "settings.json"
# What must not change between a run and its continuation.
FIXED = ("lopa", "bundle", "settings", "seeds", "tasks", "sweep")
LIBRARIES = ("numpy", "tokenizers", "jinja2", "onnxruntime", "onnxruntime-gpu")


def new_summary(
    session: Session,
    suite: Sequence[TaskSet],
    options: DecodeOptions,
    selection: Selection,
    engine: Mapping[str, Any],
    sweep: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Everything about a run that is known before its first decode."""
    settings = {**options.in_force, "raw": selection.raw, **engine}
    seed = settings.pop("seed")
    manifest = session.manifest
    summary: dict[str, Any] = {
        "schema": SCHEMA_VERSION,
        "complete": False,
        "started": _now(),
        "lopa": __version__,
        "bundle": bundle_record(session),
        "tasks": {item.label: item.record for item in suite},
        "settings": settings,
        "seeds": {"sampling": seed, "selection": selection.seed},
        "sweep": sweep,
        "versions": versions(manifest.versions | manifest.engine.versions),
        "machine": machine(),
    }
    if any(item.task.runs_code for item in suite):
        summary["sandbox"] = describe()
    # As it is read back, tuples and all, so that it can be compared.
    plain: dict[str, Any] = json.loads(json.dumps(summary))
    return plain


def bundle_record(session: Session) -> dict[str, Any]:
    """What identifies a bundle."""
    manifest = session.manifest
    return {
        "folder": str(session.folder),
        "manifest_sha256": sha256_of(session.folder / BUNDLE_FILE),
        "checkpoint": manifest.source.checkpoint,
        "checkpoint_fingerprint": manifest.source.fingerprint,
        "adapter": manifest.source.adapter,
        "precision": manifest.graph.precision,
        "target": manifest.engine.target,
    }


def open_run(
    folder: Path, summary: dict[str, Any], resume: bool, force: bool
) -> tuple[dict[str, Any], list[Sample]]:
    """Make the folder of a run, or check that it is of the same run and read what it has.

    Without `force` a folder with anything else in it is refused; a run made with other settings
    cannot be continued, the LopaError lists what differs. `force` removes what runs leave.
    """
    path = folder / SUMMARY
    if resume and path.is_file():
        before = read_summary(path)
        changes = differences(before, summary)
        if changes:
            raise LopaError(
                f"{folder} was made with other settings: {'; '.join(changes)}; "
                "repeat them or choose a new --output"
            )
        return {**summary, "started": before["started"]}, resume_samples(folder / FILE)
    if not force and (path.exists() or (folder / FILE).exists()):
        raise LopaError(f"{folder} has a run; --resume continues it, --force replaces it")
    for draft in folder.glob(f".{SUMMARY}.*"):  # of a run that was killed while it began
        draft.unlink()
    check_output(folder, force)
    for name in (FILE, SWEEP, CURVE, TUNED, SETTINGS):
        (folder / name).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, summary)
    return summary, []


def finished(summary: dict[str, Any], **results: Any) -> dict[str, Any]:
    """The summary of a run that has decoded everything."""
    return {**summary, "complete": True, "finished": _now(), **results}


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What differs in the parts that must stay: dotted name, old and new value."""
    old = _flat({name: before.get(name) for name in FIXED})
    new = _flat({name: after.get(name) for name in FIXED})
    moved = {name for name in (*old, *new) if name.endswith((".folder", ".file"))}
    return [
        f"{name} was {old.get(name)}, is {new.get(name)}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name) and name not in moved  # the hashes decide
    ]


def read_summary(path: Path) -> dict[str, Any]:
    """Read a summary; raises LopaError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA_VERSION:
        raise LopaError(f"{path} is not a summary of this version; choose a new --output")
    return found


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file that is there whole or not at all."""
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    write_whole(path, text.encode("utf-8"))


def versions(bundle: Mapping[str, str]) -> dict[str, Any]:
    """Versions of what runs here, and of what made the bundle."""
    here = {"lopa": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            here[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"here": here, "bundle": dict(bundle)}


def machine() -> dict[str, Any]:
    """The machine as far as it matters for speed."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        pass
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
    }


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {name: value}
    parts: dict[str, Any] = {}
    for key, item in value.items():
        parts |= _flat(item, f"{name}.{key}" if name else str(key))
    return parts


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
