"""Draws a sweep as a PNG: TPF above, score below, against the swept value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ..figure_file import save_figure
from .sweep import Sweep
from .totals import Totals

TPF, USEFUL, SCORE, INK = "#1d5fa6", "#5a9bd0", "#a34a05", "#222222"
NORMAL_95 = 1.96


def draw_curve(sweep: Sweep, title: str, path: Path) -> None:
    """Write the PNG."""
    figure = Figure(figsize=(6.4, 5.6))
    above, below = figure.subplots(2, 1, sharex=True)
    places = axis_places([item.value for item in sweep.values])
    found = [item.overall for item in sweep.values]
    above.plot(places, [t.tpf for t in found], color=TPF, marker="o", label="committed tokens")
    above.plot(
        places, [t.useful_tpf for t in found], color=USEFUL, marker="s", linestyle="--",
        label="up to the end of text",
    )  # fmt: skip
    above.set_ylabel("TPF (tokens per step)")
    above.set_ylim(0, 1.25 * max(t.tpf for t in found) or 1)  # room for the legend
    above.legend(frameon=False, fontsize=8.5)
    bounds = [score_interval(totals) for totals in found]
    below.plot(places, [t.score for t in found], color=SCORE, marker="o", clip_on=False)
    below.fill_between(
        places, [low for low, _ in bounds], [high for _, high in bounds], color=SCORE, alpha=0.15,
        linewidth=0, label="95 % interval",
    )  # fmt: skip
    below.set_ylabel(f"score (% of {found[0].problems})")
    below.set_ylim(0, 100)
    below.legend(frameon=False, fontsize=8.5)
    below.set_xlabel(sweep.field.replace("_", " "))
    below.set_xticks(places, [str(item.value) for item in sweep.values], parse_math=False)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
    above.set_title(title, loc="left", fontsize=11, color=INK, parse_math=False)
    figure.tight_layout()
    save_figure(figure, path, dpi=160, facecolor="white")


def axis_places(values: Sequence[Any]) -> list[float]:
    """Where values stand on the axis: numbers at their value, anything else in order."""
    if all(isinstance(value, (int, float)) for value in values):
        return [float(value) for value in values]
    return [float(index) for index in range(len(values))]


def score_interval(totals: Totals) -> tuple[float, float]:
    """Wilson's 95 % interval of the score, in percent."""
    count = totals.problems
    if not count:
        return 0.0, 100.0
    share, square = totals.correct / count, NORMAL_95**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = NORMAL_95 * math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    half /= 1 + square / count
    return 100 * max(0.0, middle - half), 100 * min(1.0, middle + half)
