"""Draws one decode as a PNG: position by step, colour by confidence, marks of lookaheads."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import ScaledTranslation

from ..figure_file import save_figure
from .picture import BIN_NAMES, COLOURS, Picture, visible

EMPTY, MASK, KEPT = "#ffffff", "#eeeeee", "#c9c9c9"
INK, MARK = "#222222", "#000000"
CELL_INCHES = 0.19
MOST_LABELS = 96  # tokens shown under the axis at most
LABEL_LENGTH = 8
MARGIN_POINTS = 13  # between the cells and the step numbers, for the marks
LEGEND_INCHES = 1.9


def draw_png(picture: Picture, path: Path) -> None:
    """Write the PNG."""
    steps, positions = len(picture.steps), picture.positions
    cell = min(CELL_INCHES, 20 / max(positions, 1), 24 / max(steps, 1))
    width = max(positions * cell, 5.0)
    height = max(steps * cell, 1.2)
    figure = Figure(figsize=(width + LEGEND_INCHES + 1.0, height + 1.9))
    axes = figure.subplots()
    _cells(axes, picture)
    _marks(axes, picture, cell)
    _axes(axes, picture, cell)
    _legend(axes)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a token in a script without a font
        save_figure(figure, path, dpi=160, bbox_inches="tight", facecolor="white")


def _cells(axes: Any, picture: Picture) -> None:
    kinds = np.zeros((len(picture.steps), picture.positions), np.int8)
    for row, step in enumerate(picture.steps):
        kinds[row, : step.length] = 1
    for fill in picture.fills:
        kinds[fill.step :, fill.position] = 2
        kinds[fill.step - 1, fill.position] = 3 + fill.bin
    colours = ListedColormap([EMPTY, MASK, KEPT, *COLOURS])
    axes.pcolormesh(
        np.arange(picture.positions + 1),
        np.arange(len(picture.steps) + 1) + 0.5,
        kinds,
        cmap=colours,
        vmin=-0.5,
        vmax=len(COLOURS) + 2.5,
        edgecolors="white",
        linewidth=0.5,
    )
    axes.set_xlim(0, picture.positions)
    axes.set_ylim(len(picture.steps) + 0.5, 0.5)


def _marks(axes: Any, picture: Picture, cell: float) -> None:
    size = (cell * 72 * 0.42) ** 2
    ahead = [fill for fill in picture.fills if fill.ahead]
    axes.scatter(
        [fill.position + 0.5 for fill in ahead],
        [fill.step for fill in ahead],
        s=size,
        facecolors="white",
        edgecolors=MARK,
        linewidths=0.8,
        zorder=3,
    )
    won = picture.won
    beside = axes.get_yaxis_transform() + ScaledTranslation(
        -MARGIN_POINTS / 2 / 72, 0, axes.figure.dpi_scale_trans
    )
    axes.scatter(
        [0] * len(won),
        [step.number for step in won],
        s=min(size * 1.6, (MARGIN_POINTS * 0.6) ** 2),
        marker=">",
        color=MARK,
        transform=beside,
        clip_on=False,
        zorder=3,
    )
    for start in range(picture.block_size, picture.positions, picture.block_size):
        axes.axvline(start, color=INK, linewidth=0.8, alpha=0.6)
    if picture.useful < picture.positions:
        axes.axvline(picture.useful, color=INK, linewidth=1.2, linestyle=(0, (3, 2)))


def _axes(axes: Any, picture: Picture, cell: float) -> None:
    axes.set_title(picture.title, loc="left", fontsize=11, color=INK, pad=36, parse_math=False)
    axes.annotate(
        picture.subtitle, (0, 1), xytext=(0, 20), xycoords="axes fraction",
        textcoords="offset points", fontsize=8.5, color=INK, parse_math=False,
    )  # fmt: skip
    axes.set_ylabel("step", fontsize=9, labelpad=12)
    axes.tick_params(length=2, labelsize=7.5)
    axes.spines[:].set_visible(False)
    every = max(1, round(0.28 / cell))
    axes.set_yticks(range(1, len(picture.steps) + 1, every))
    axes.tick_params(axis="y", pad=MARGIN_POINTS, length=0)
    above = axes.secondary_xaxis("top")
    numbers = range(0, picture.positions, 8 if picture.positions <= MOST_LABELS else 32)
    above.set_xticks([number + 0.5 for number in numbers], [str(number) for number in numbers])
    above.tick_params(length=2, labelsize=7.5, pad=1)
    above.spines["top"].set_visible(False)
    if picture.positions > MOST_LABELS:
        axes.set_xlabel("position after the prompt", fontsize=9)
        return
    texts = [""] * picture.positions
    for fill in picture.fills:
        shown = visible(fill.text)
        texts[fill.position] = shown if len(shown) <= LABEL_LENGTH else f"{shown[:LABEL_LENGTH]}…"
    axes.set_xticks(np.arange(picture.positions) + 0.5)
    axes.set_xticklabels(texts, rotation=90, fontsize=6.5, family="monospace", parse_math=False)
    axes.set_xlabel("position after the prompt, with the token it got", fontsize=9)


def _legend(axes: Any) -> None:
    handles: list[Any] = [
        Patch(facecolor=colour, label=name)
        for colour, name in reversed(list(zip(COLOURS, BIN_NAMES, strict=True)))
    ]
    handles += [
        Patch(facecolor=KEPT, label="filled earlier"),
        Patch(facecolor=MASK, label="still masked"),
        _line(marker=">", markerfacecolor=MARK, label="lookahead branch won"),
        _line(marker="o", markerfacecolor="white", label="token it ran ahead with"),
        Line2D([], [], color=INK, linewidth=0.8, alpha=0.6, label="block boundary"),
        Line2D([], [], color=INK, linewidth=1.2, linestyle=(0, (3, 2)), label="end of text"),
    ]
    axes.legend(
        handles=handles,
        title="confidence when filled",
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
        fontsize=7.5,
        title_fontsize=8,
        alignment="left",
    )


def _line(**style: Any) -> Line2D:
    return Line2D([], [], linestyle="none", markeredgecolor=MARK, markersize=5, **style)
