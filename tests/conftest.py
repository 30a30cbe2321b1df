from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def golden() -> Path:
    """The reference fixtures: LOPA_GOLDEN, else shared/golden beside the repository."""
    folder = Path(os.environ.get("LOPA_GOLDEN", REPOSITORY.parent / "shared" / "golden"))
    if not (folder / "checkpoints").is_dir():
        reason = f"no golden fixtures at {folder}; set LOPA_GOLDEN"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder
