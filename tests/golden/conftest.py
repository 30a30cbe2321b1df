from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lopa
import pytest
from lopa.runtime.session import Session

from ..exported import Exports

OpenGolden = Callable[[str], Session]


@pytest.fixture(scope="session")
def open_golden(golden: Path, exports: Exports) -> OpenGolden:
    """Open a golden checkpoint, or `base+adapter`, exported with the most candidates there are."""
    sessions: dict[str, Session] = {}

    def open_named(name: str) -> Session:
        if name not in sessions:
            base, _, adapter = name.partition("+")
            checkpoint = golden / "checkpoints" / base
            model = exports.model(
                name,
                checkpoint,
                adapter=golden / "checkpoints" / adapter if adapter else None,
                candidates=_most_candidates(checkpoint),
            )
            sessions[name] = lopa.open_bundle(exports.bundle(name, model, 8, (160,), (256,)))
        return sessions[name]

    return open_named


def _most_candidates(checkpoint: Path) -> int:
    """All ids that the tokenizer defines but the mask token."""
    from lopa.export.tokenizer_files import read_tokenizer

    return read_tokenizer(checkpoint).size - 1
