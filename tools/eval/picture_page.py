"""One decode as a self-contained HTML page: inline SVG and CSS, nothing is loaded."""

from __future__ import annotations

from html import escape
from pathlib import Path

from .picture import BIN_NAMES, COLOURS, Fill, Picture, visible

CELL, GAP = 14, 1
LEFT, TOP = 46, 22

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1c1c; --soft: #5f5f5f;
  --mask: #ececec; --kept: #c6c6c6; --band: #0000000d; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181b; --ink: #ececec; --soft: #a3a3a3;
  --mask: #2a2d31; --kept: #4b5057; --band: #ffffff14; } }
body { background: var(--paper); color: var(--ink); margin: 2rem auto; padding: 0 1.5rem;
  max-width: 72rem; font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.25rem; margin: 0; } h2 { font-size: 1rem; margin: 2rem 0 .4rem; }
p { color: var(--soft); margin: .2rem 0 1rem; }
.scroll { overflow-x: auto; }
svg text { fill: var(--soft); font: 10px system-ui, sans-serif; }
.mask { fill: var(--mask); } .kept { fill: var(--kept); } .band { fill: var(--band); }
.mark { fill: var(--ink); } .edge { stroke: var(--soft); stroke-width: 1; }
.stop { stroke: var(--ink); stroke-width: 1.5; stroke-dasharray: 4 3; }
.ring { fill: #fff; stroke: #000; stroke-width: 1; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: .6rem 0 1rem;
  padding: 0; list-style: none; font-size: 13px; }
.legend li { display: flex; align-items: center; gap: .4rem; }
.legend i { width: 12px; height: 12px; display: inline-block; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: 14px/1.9 ui-monospace, monospace;
  margin: 0; }
pre span { border-bottom: 4px solid; padding-bottom: 1px; } pre .ahead { font-weight: 700; }
pre .after { opacity: .5; }
"""


def write_page(picture: Picture, path: Path) -> None:
    """Write the page."""
    classes = "\n".join(
        f".c{index} {{ fill: {colour}; border-color: {colour}; background: {colour}; }}"
        f" pre .c{index} {{ background: none; }}"
        for index, colour in enumerate(COLOURS)
    )
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(picture.title)}</title>
<style>{STYLE}{classes}</style>
</head>
<body>
<h1>{escape(picture.title)}</h1>
<p>{escape(picture.subtitle)}</p>
{_legend()}
<div class="scroll">
{_grid(picture)}
</div>
<h2>Text</h2>
<p>Underlined by confidence; bold where a lookahead branch ran ahead; faint behind the end of text.
Point at a token or a cell for its step.</p>
<pre>{_text(picture)}</pre>
</body>
</html>
"""
    path.write_text(page, encoding="utf-8")


def _legend() -> str:
    items = [
        f'<li><i class="c{index}"></i>{escape(name)}</li>'
        for index, name in reversed(list(enumerate(BIN_NAMES)))
    ]
    items += [
        '<li><i style="background: var(--kept)"></i>filled earlier</li>',
        '<li><i style="background: var(--mask)"></i>still masked</li>',
        '<li><svg width="12" height="12"><path class="mark" d="M1 1 L11 6 L1 11 Z"/></svg>'
        "lookahead branch won</li>",
        '<li><svg width="12" height="12"><circle class="ring" cx="6" cy="6" r="3.5"/></svg>'
        "token it ran ahead with</li>",
    ]
    return f'<ul class="legend"><li>confidence:</li>{"".join(items)}</ul>'


def _grid(picture: Picture) -> str:
    steps, positions = len(picture.steps), picture.positions
    width, height = LEFT + positions * CELL + 8, TOP + steps * CELL + 30
    parts = [
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(picture.title)}">'
    ]
    parts += [_row(picture, index) for index in range(steps)]
    at = {fill.position: fill.step for fill in picture.fills}
    for position, step in at.items():  # one bar for all steps after the fill
        if step < steps:
            x, y = LEFT + position * CELL, TOP + step * CELL
            parts.append(
                f'<rect class="kept" x="{x}" y="{y}" width="{CELL - GAP}" '
                f'height="{(steps - step) * CELL - GAP}"/>'
            )
    parts += [_cell(fill) for fill in picture.fills]
    bottom = TOP + steps * CELL
    for start in range(picture.block_size, positions, picture.block_size):
        parts.append(_vertical("edge", start, bottom))
    if picture.useful < positions:
        parts.append(_vertical("stop", picture.useful, bottom))
    for position in range(0, positions, 8):
        middle = LEFT + position * CELL + CELL / 2
        parts.append(f'<text x="{middle}" y="{TOP - 6}" text-anchor="middle">{position}</text>')
    parts.append(f'<text x="{LEFT}" y="{bottom + 18}">position after the prompt</text>')
    parts.append(f'<text x="4" y="{TOP - 6}">step</text></svg>')
    return "\n".join(parts)


def _row(picture: Picture, index: int) -> str:
    step, y = picture.steps[index], TOP + index * CELL
    middle, parts = y + CELL / 2, []
    if step.lookahead:
        wide = LEFT - 4 + picture.positions * CELL
        parts.append(f'<rect class="band" x="4" y="{y}" width="{wide}" height="{CELL}"/>')
        mark = f"M{LEFT - 14} {y + 2} L{LEFT - 4} {middle} L{LEFT - 14} {y + CELL - 2} Z"
        title = f"step {step.number}: lookahead {step.lookahead} of {step.branches - 1} won"
        parts.append(f'<path class="mark" d="{mark}"><title>{title}</title></path>')
    parts.append(f'<text x="{LEFT - 18}" y="{middle + 3.5}" text-anchor="end">{step.number}</text>')
    extent = min(step.length, picture.positions)
    parts.append(
        f'<path class="mask" d="{"".join(_square(column, y) for column in range(extent))}"/>'
    )
    return "".join(parts)


def _square(column: int, y: int) -> str:
    side = CELL - GAP
    return f"M{LEFT + column * CELL} {y}h{side}v{side}h-{side}z"


def _cell(fill: Fill) -> str:
    x, y = LEFT + fill.position * CELL, TOP + (fill.step - 1) * CELL
    side = CELL - GAP
    cell = (
        f'<rect class="c{fill.bin}" x="{x}" y="{y}" width="{side}" height="{side}">'
        f"<title>{_hint(fill)}</title></rect>"
    )
    if fill.ahead:
        ring = f'class="ring" pointer-events="none" cx="{x + side / 2}" cy="{y + side / 2}"'
        cell += f'<circle {ring} r="3.5"/>'
    return cell


def _vertical(name: str, position: int, bottom: int) -> str:
    x = LEFT + position * CELL - GAP / 2
    return f'<line class="{name}" x1="{x}" y1="{TOP - 2}" x2="{x}" y2="{bottom + 2}"/>'


def _text(picture: Picture) -> str:
    parts = []
    for fill in sorted(picture.fills, key=lambda item: item.position):
        names = [f"c{fill.bin}"]
        names += ["ahead"] if fill.ahead else []
        names += ["after"] if fill.position >= picture.useful else []
        shown = visible(fill.text) if fill.position >= picture.useful - 1 else fill.text
        parts.append(
            f'<span class="{" ".join(names)}" title="{_hint(fill)}">{escape(shown)}</span>'
        )
    return "".join(parts)


def _hint(fill: Fill) -> str:
    ahead = ", ran ahead" if fill.ahead else ""
    token = escape(visible(fill.text), quote=True)
    return f"{token} at {fill.position}, step {fill.step}, confidence {fill.confidence:.3f}{ahead}"
