"""Models exported once per test run; parallel workers wait for the first that makes one."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest


class Exports:
    """Folders under one root, each made on first use and then only read."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def of_run(cls, factory: pytest.TempPathFactory) -> Exports:
        """Use a root common to all workers of a run."""
        base = factory.getbasetemp()
        root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "exports"
        root.mkdir(exist_ok=True)
        return cls(root)

    def once(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return the folder `name`, calling `make` with an absent path if there is none yet."""
        folder = self.root / name
        with (self.root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                draft = self.root / f"{name}.draft"
                shutil.rmtree(draft, ignore_errors=True)
                make(draft)
                draft.rename(folder)
        return folder

    def checkpoint(self, name: str, **settings: Any) -> Path:
        """Return a tiny random checkpoint (settings of `write_checkpoint`)."""
        from .export.tiny_checkpoint import write_checkpoint

        return self.once(f"{name}-checkpoint", lambda out: write_checkpoint(out, **settings))

    def model(self, name: str, checkpoint: Path, **settings: Any) -> Path:
        """Return the model folder of `checkpoint` (settings of `export_model`)."""
        from lopa.export.model_folder import export_model

        return self.once(f"{name}-model", lambda out: export_model(checkpoint, out, **settings))

    def bundle(
        self,
        name: str,
        model: Path,
        lookahead: int,
        windows: Sequence[int],
        contexts: Sequence[int],
        prefills: Sequence[int] = (),
    ) -> Path:
        """Return the bundle of `model` with every combination of the sizes."""
        from lopa.graphs.bundle import build_bundle
        from lopa.graphs.instances import plan_instances

        instances = plan_instances(lookahead, windows, prefills, contexts)
        return self.once(f"{name}-bundle", lambda out: build_bundle(model, out, instances))
