"""Show what a bundle or model folder holds and verify it.

Exit status 1 when a file is missing or differs from the manifest.

A manifest carries digests of itself, and what was edited is refused by every command. --reseal
accepts an edit made on purpose: it says what changed, checks the result and records it.

With --settings, without FOLDER, every decode setting: which strategies have it, what it means, what
it may be.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from ...runtime.contract import LopaError
from ...runtime.manifest import (
    BUNDLE_FILE,
    MODEL_FILE,
    BundleManifest,
    ModelManifest,
    file_faults,
    read_bundle,
    read_model,
)
from ...runtime.targets import TARGETS, find_target
from ..display.memory import memory_lines
from ..display.report import (
    Section,
    cache_lines,
    engine_lines,
    fast_lines,
    file_lines,
    instance_lines,
    model_lines,
    print_report,
    quantization_lines,
    source_lines,
    version_lines,
)
from ..paths import path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `lopa inspect`."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "folder", metavar="FOLDER", nargs="?", type=path, help="bundle or model folder"
    )
    what.add_argument(
        "--settings", action="store_true", help="the decode settings, with --json as a schema"
    )
    parser.add_argument(
        "--json", action="store_true", help='print the manifest with "verified" and "faults"'
    )
    parser.add_argument(
        "--reseal",
        action="store_true",
        help="accept the folder as it is: record files and digests again",
    )


def run(args: argparse.Namespace) -> int:
    """Print the manifest and what is wrong with the files, or the decode settings.

    `--reseal` seals the manifest again first.
    """
    if args.settings:
        return _print_settings(args.json)
    if args.reseal:
        return _reseal(args)
    manifest = _read(args.folder)
    faults = file_faults(args.folder, manifest.files)
    if args.json:
        print(json.dumps({**asdict(manifest), "verified": not faults, "faults": faults}))
    else:
        print_report(str(args.folder), _sections(manifest, faults))
    return 1 if faults else 0


def _print_settings(as_json: bool) -> int:
    from ..settings_text import schema, table

    if as_json:
        print(json.dumps(schema()))
    else:
        for name, owners, meaning, values, default in table():
            print(f"{name} ({owners}): {meaning}\n    {values}; default: {default}")
    return 0


def _reseal(args: argparse.Namespace) -> int:
    from ..reseal import reseal

    _check_folder(args.folder)
    done = reseal(args.folder)
    if args.json:
        found = {"resealed": bool(done.changes), "changes": done.changes}
        print(json.dumps({**asdict(done.manifest), **found}))
        return 0
    lines = [*done.changes] or ["nothing: all is as it was sealed, nothing was written"]
    sections = [("changed", lines), ("engine", [done.unchecked or "agrees with the manifest"])]
    print_report(f"{'resealed ' if done.changes else ''}{args.folder}", sections)
    return 0


def _read(folder: Path) -> BundleManifest | ModelManifest:
    _check_folder(folder)
    return read_bundle(folder) if (folder / BUNDLE_FILE).is_file() else read_model(folder)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise LopaError(f"no folder {folder}, expected a bundle or an exported model folder")
    if (folder / BUNDLE_FILE).is_file() or (folder / MODEL_FILE).is_file():
        return
    raise LopaError(
        f"{folder} is neither a bundle ({BUNDLE_FILE}) nor an exported model folder ({MODEL_FILE})"
    )


def _sections(manifest: BundleManifest | ModelManifest, faults: list[str]) -> list[Section]:
    versions = version_lines(manifest.versions)
    kind = ["exported model folder"]
    if isinstance(manifest, BundleManifest):
        kind = [f"bundle for {manifest.engine.target}"]
        versions = engine_lines(manifest.engine) + versions
    return [
        ("kind", kind),
        ("precision", [f"{manifest.graph.precision}, ONNX opset {manifest.graph.opset}"]),
        ("quantized", quantization_lines(manifest.quantization, layers=True)),
        ("versions", [f"schema {manifest.schema}, contract {manifest.contract}", *versions]),
        ("model", model_lines(manifest.model)),
        ("source", source_lines(manifest.source)),
        *_shapes(manifest),
        ("files", file_lines(manifest.files, hashes=True)),
        ("verified", [f"NO: {fault}" for fault in faults] or ["yes, all files match"]),
    ]


def _shapes(manifest: BundleManifest | ModelManifest) -> list[Section]:
    if not isinstance(manifest, BundleManifest):
        return []
    shapes = "any shape up to" if manifest.engine.dynamic else "exactly"
    return [
        ("fast graph", fast_lines(manifest.fast, layers=True)),
        ("instances", [f"the engine takes {shapes}:", *instance_lines(manifest.instances)]),
        ("cache", cache_lines(manifest)),
        ("memory", memory_lines(manifest)),
        ("CUDA graphs", [_cuda_graphs(manifest.engine.target)]),
    ]


def _cuda_graphs(target: str) -> str:
    """How the steps of a target's bundles are launched."""
    from ...runtime.engines import engine_folder

    if target not in TARGETS:
        return "none: an unknown target"
    return engine_folder(find_target(target)).CUDA_GRAPHS[target]
