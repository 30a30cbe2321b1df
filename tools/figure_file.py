"""A figure in a file that is there whole or not at all."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from ..runtime.staging import write_whole


def save_figure(figure: Any, path: Path, **settings: Any) -> None:
    """Write a matplotlib figure as PNG; `settings` are those of its `savefig`."""
    data = io.BytesIO()
    figure.savefig(data, format="png", **settings)
    write_whole(path, data.getvalue())
