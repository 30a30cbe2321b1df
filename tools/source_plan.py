"""What a build starts from: a checkpoint or an exported model folder, and what will be written."""

from __future__ import annotations

import argparse
import contextlib
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..runtime.contract import ELEMENT_BYTES, MODEL_DTYPES, LopaError
from ..runtime.manifest import BUNDLE_FILE, MODEL_FILE, ModelInfo, read_model
from ..runtime.staging import check_output
from .display.progress import Progress
from .display.report import Section, columns, model_lines, size_text

PRECISIONS = tuple(MODEL_DTYPES)
DEFAULT_PRECISION, DEFAULT_CANDIDATES = "fp32", 8
CHECKPOINT_FILE = "config.json"
GRAPH_BYTES = 16_000  # of one traced layer, roughly


@dataclass(frozen=True)
class SourcePlan:
    """A source that was read and found usable; bytes of files not yet written are estimates."""

    folder: Path
    kind: str  # "checkpoint" or "model folder"
    adapter: Path | None
    model: ModelInfo
    precision: str
    files: dict[str, int]

    def sections(self) -> list[Section]:
        """Lines for people."""
        about = "about " if self.kind == "checkpoint" else ""
        rows = [(name, size_text(size)) for name, size in self.files.items()]
        rows.append(("total", about + size_text(sum(self.files.values()))))
        source = [f"{self.kind} {self.folder}"]
        if self.adapter is not None:
            source.append(f"adapter {self.adapter}")
        return [
            ("source", source),
            ("model", model_lines(self.model)),
            ("precision", [self.precision]),
            ("files", columns(rows)),
        ]

    def summary(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "source": str(self.folder),
            "kind": self.kind,
            "adapter": None if self.adapter is None else str(self.adapter),
            "family": self.model.family,
            "precision": self.precision,
            "files": self.files,
            "bytes": sum(self.files.values()),
        }


def add_write_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a command that writes a folder."""
    parser.add_argument("--force", action="store_true", help="replace what the output holds")
    parser.add_argument("--dry-run", action="store_true", help="print the plan, write nothing")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def plan_checkpoint(
    folder: Path, adapter: Path | None, precision: str, candidates: int, out: Path, force: bool
) -> SourcePlan:
    """Read a checkpoint's headers; raises LopaError for what an export would refuse."""
    from ..export.graph_file import GRAPH_FILE, WEIGHTS_FILE
    from ..export.source import open_source
    from ..export.spec import parameter_shapes
    from ..export.tokenizer_files import COPIED_FILES, TOKENIZER_FILE

    check_output(out, force, folder, *([] if adapter is None else [adapter]))
    source = open_source(folder, adapter, candidates)
    numbers = sum(math.prod(shape) for shape in parameter_shapes(source.spec).values())
    names = [name for name in (TOKENIZER_FILE, *COPIED_FILES) if (folder / name).is_file()]
    return SourcePlan(
        folder,
        "checkpoint",
        adapter,
        source.spec.info,
        precision,
        {
            GRAPH_FILE: GRAPH_BYTES * source.spec.info.layers,
            WEIGHTS_FILE: numbers * ELEMENT_BYTES[MODEL_DTYPES[precision]],
            **{name: (folder / name).stat().st_size for name in names},
        },
    )


def plan_source(
    folder: Path,
    adapter: Path | None,
    precision: str | None,
    candidates: int | None,
    out: Path,
    force: bool,
) -> SourcePlan:
    """Read a checkpoint or model folder; None takes the model folder's value or the default."""
    if not (folder / MODEL_FILE).is_file():
        _check_checkpoint(folder)
        return plan_checkpoint(
            folder,
            adapter,
            precision or DEFAULT_PRECISION,
            candidates or DEFAULT_CANDIDATES,
            out,
            force,
        )
    check_output(out, force, folder)
    manifest = read_model(folder)
    made = {"precision": manifest.graph.precision, "candidates": manifest.model.candidates}
    asked = {"precision": precision, "candidates": candidates}
    faults = [
        f"{folder} was exported with {name} {made[name]}, not {value}"
        for name, value in asked.items()
        if value is not None and value != made[name]
    ]
    if adapter is not None:
        faults.append(f"{folder} is exported already, an adapter is merged by the export")
    if faults:
        flags = [f"--{name} {value}" for name, value in asked.items() if value is not None]
        flags += [f"--adapter {adapter}"] if adapter is not None else []
        again = f"lopa export CHECKPOINT -o {folder} --force {' '.join(flags)}"
        raise LopaError(f"{'; '.join(faults)}; export it again: {again}")
    return SourcePlan(
        folder,
        "model folder",
        None,
        manifest.model,
        manifest.graph.precision,
        {name: record.bytes for name, record in manifest.files.items()},
    )


@contextlib.contextmanager
def exported_model(plan: SourcePlan, out: Path, progress: Progress) -> Iterator[Path]:
    """Yield the model folder, exported next to the output for as long as it is needed."""
    if plan.kind == "model folder":
        yield plan.folder
        return
    from ..export.model_folder import export_model

    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{out.name}.", suffix=".export", dir=out.parent
    ) as stage:
        model = Path(stage, "model")
        export_model(
            plan.folder,
            model,
            adapter=plan.adapter,
            precision=plan.precision,
            candidates=plan.model.candidates,
            progress=progress,
        )
        yield model


def _check_checkpoint(folder: Path) -> None:
    """Refuse what is neither a checkpoint nor a model folder."""
    if (folder / BUNDLE_FILE).is_file():
        raise LopaError(
            f"{folder} is a bundle already; decode with: lopa generate {folder} --prompt TEXT"
        )
    if folder.is_file():
        raise LopaError(f"{folder} is a file, expected a checkpoint or model folder")
    if folder.is_dir() and not (folder / CHECKPOINT_FILE).is_file():
        raise LopaError(
            f"{folder} has neither {CHECKPOINT_FILE} (a Hugging Face checkpoint) nor {MODEL_FILE} "
            "(a model folder made by lopa export)"
        )
