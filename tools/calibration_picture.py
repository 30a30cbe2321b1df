"""Picture of a calibration: what every site costs when it alone is quantised."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .figure_file import save_figure

if TYPE_CHECKING:
    from ..calibration.plan import SitePlan
    from ..calibration.sensitivity import Sensitivity


def draw_sensitivities(
    found: Sequence[Sensitivity], plans: Sequence[SitePlan], path: Path
) -> Path | None:
    """Write a PNG: tokens changed and signal-to-noise per site, sites kept higher marked.

    Returns None when matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None

    kept = {plan.site.name for plan in plans if plan.reason}
    names = [item.site for item in found]
    changed = [100 * (1 - item.fidelity.agreement) for item in found]
    noise = [float("nan") if item.snr_db is None else item.snr_db for item in found]
    colours = ["#c2410c" if name in kept else "#2563eb" for name in names]
    figure = Figure(figsize=(9, 1.5 + 0.22 * len(names)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    rows = range(len(names))
    left.barh(rows, changed, color=colours)
    left.set_xlabel("tokens changed, % (orange: kept higher)")
    left.set_yticks(rows, names, fontsize=7)
    left.invert_yaxis()
    right.barh(rows, noise, color=colours)
    right.set_xlabel("signal to noise of the products, dB")
    for axis in (left, right):
        axis.grid(axis="x", alpha=0.3)
    save_figure(figure, path, dpi=120, metadata={"Software": None})
    return path
