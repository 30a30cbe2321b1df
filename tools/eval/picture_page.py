"""One decode as a self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment

from ...runtime.staging import write_whole
from .picture import BIN_NAMES, COLOURS, Picture, visible

TEMPLATE = Path(__file__).with_suffix(".html.jinja")


def write_page(picture: Picture, path: Path) -> None:
    """Write the page."""
    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["visible"] = visible
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    page = template.render(picture=picture, colours=COLOURS, bin_names=BIN_NAMES)
    write_whole(path, page.encode())
