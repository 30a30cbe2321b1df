"""Closing summaries as aligned plain text: readable in a terminal, a log and a mail."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence

from ...runtime.contract import Instance
from ...runtime.engine_info import EngineInfo
from ...runtime.manifest import BundleManifest, FileRecord, ModelInfo, Source
from ...runtime.memory import slot_bytes
from ...runtime.quantization import FastGraph, Quantization

Section = tuple[str, Sequence[str]]

BOLD, DIM = "\x1b[1m", "\x1b[2m"
NO_ROOM = "answers are cut or slowed for want of room; build with a larger --context or --window"
UNITS = ("bytes", "kB", "MB", "GB", "TB")


def print_report(title: str, sections: Iterable[Section]) -> None:
    """Print a title and named groups of lines; names are bold on a terminal."""
    shown = [(name, lines) for name, lines in sections if lines]
    width = max((len(name) for name, _ in shown), default=0)
    print(_styled(title, BOLD))
    for name, lines in shown:
        for index, line in enumerate(lines):
            head = _styled(f"{name:<{width}}", BOLD) if index == 0 else " " * width
            print(f"  {head}  {line}".rstrip())


def dim(text: str) -> str:
    """Text that steps back on a terminal."""
    return _styled(text, DIM)


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows of cells: the first column to the left, the others to the right."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))] if rows else []
    return [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def size_text(size: float) -> str:
    """Bytes in decimal units with three digits, for example ``38.2 MB``."""
    unit = 0
    while size >= 999.5 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    digits = 0 if unit == 0 or size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{size:.{digits}f} {UNITS[unit]}"


def model_lines(info: ModelInfo) -> list[str]:
    """Dimensions and traits of a model."""
    shift = "row i predicts i + 1" if info.logit_shift else "row i predicts i"
    stops = ", ".join(str(token) for token in info.stop_token_ids)
    return [
        f"{info.model_type} ({info.family} family), {info.layers} layers, "
        f"hidden {info.hidden_size}, mlp {info.intermediate_size}",
        f"{info.heads} heads, {info.kv_heads} kv heads of {info.head_dim}, "
        f"{info.max_positions} positions",
        f"vocabulary {info.vocab_size} ({info.tokenizer_size} in the tokenizer), "
        f"{info.candidates} candidates kept",
        f"mask token {info.mask_token_id}, pad {info.pad_token_id}, stop {stops}",
        f"{info.window_attention} attention, block {info.block_size}, {shift}",
    ]


def instance_lines(instances: Iterable[Instance]) -> list[str]:
    """One line per instance, under a heading."""
    head = ("instance", "branches", "window", "context", "head rows")
    cells = [
        (item.name, str(item.branches), str(item.window), str(item.context), str(item.rows))
        for item in instances
    ]
    return columns([head, *cells])


def file_lines(files: Mapping[str, FileRecord], hashes: bool = False) -> list[str]:
    """One line per file with its size and, when asked, the start of its sha256; then the total."""
    rows = [(name, size_text(record.bytes), record.sha256[:12]) for name, record in files.items()]
    rows.append(("total", size_text(total_bytes(files)), ""))
    return [line.rstrip() for line in columns([row if hashes else row[:2] for row in rows])]


def total_bytes(files: Mapping[str, FileRecord]) -> int:
    """Bytes of all files of a manifest."""
    return sum(record.bytes for record in files.values())


def source_lines(source: Source) -> list[str]:
    """Names and fingerprints of what the weights came from."""
    lines = [f"{source.checkpoint}  {source.fingerprint[:12]}"]
    if source.adapter is not None:
        lines.append(f"adapter {source.adapter}  {(source.adapter_fingerprint or '')[:12]}")
    return lines


def cache_lines(manifest: BundleManifest) -> list[str]:
    """Memory of keys and values for every context on offer."""
    slot = slot_bytes(manifest.model, manifest.model_dtype)
    contexts = sorted({instance.context for instance in manifest.instances})
    return [f"{size_text(slot * context)} for {context} slots" for context in contexts]


def version_lines(versions: Mapping[str, str]) -> list[str]:
    """Libraries with their versions on one line."""
    return [", ".join(f"{name} {version}" for name, version in versions.items())]


def fast_lines(found: FastGraph | None, layers: bool = False) -> list[str]:
    """The second precision of a bundle."""
    return [] if found is None else [found.file, *quantization_lines(found.quantization, layers)]


def engine_lines(engine: EngineInfo) -> list[str]:
    """Libraries that made an engine and what a compiled one runs on."""
    lines = version_lines(engine.versions)
    if engine.stamp is not None:
        numbers = ", ".join(str(number) for number in engine.stamp.compute_capabilities)
        settings = [f"{name} {value}" for name, value in engine.stamp.settings.items()]
        lines.append("; ".join([f"SM {numbers}", engine.stamp.platform, *settings]))
    return lines


def quantization_lines(found: Quantization | None, layers: bool = False) -> list[str]:
    """Recipe, precisions and fidelity of a quantised model; with `layers`, those kept higher."""
    if found is None:
        return []
    counts = ", ".join(f"{count} {name}" for name, count in found.counts.items())
    lines = [
        f"recipe {found.recipe}: {counts}" + (f", {found.cache} cache" if found.cache else ""),
        *([f"  {rule}" for rule in found.rules] if layers else []),
    ]
    lines.append(f"kept {found.agreement:.2%} of the tokens on {found.states} recorded steps")
    kept = [
        f"{name} {layer.precision}: {layer.reason}"
        for name, layer in found.layers.items()
        if layer.reason
    ]
    if layers:
        lines += kept
        lines.append(f"of model {found.model_sha256[:12]}, prompts {found.prompts_sha256[:12]}")
    elif kept:
        lines.append(f"{len(kept)} products kept higher than the recipe says")
    return lines


def _styled(text: str, code: str) -> str:
    plain = not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.getenv("TERM") == "dumb"
    return text if plain else f"{code}{text}\x1b[0m"
