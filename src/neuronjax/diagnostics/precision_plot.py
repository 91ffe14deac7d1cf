"""The picture of a precision search: predicted time against error."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from neuronjax.report.plots import Picture
from neuronjax.report.plots_style import FAINT, INK, plain
from neuronjax.report.quantities import time_unit

if TYPE_CHECKING:
    from neuronjax.diagnostics.precision_result import PrecisionSearch

_WITHIN, _BEYOND, _FOUND = "#0072B2", "#D55E00", "#009E73"
_UNMEASURABLE = 1e-9  # an error of zero is drawn a decade below the smallest


def draw_search(search: PrecisionSearch) -> Figure:
    """Every policy tried is a dot; the line goes through what was kept."""
    figure = Picture(figsize=(7.5, 4.6), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    size, unit = time_unit(search.baseline_seconds)
    low, high = _limits(search)
    _dots(axes, search, size, low, high)
    kept = [d for d in search.decisions if d.outcome == "kept"]
    xs = [d.seconds / size for d in kept if d.seconds is not None]
    ys = [_shown(d.error, low, high) for d in kept if d.seconds is not None]
    axes.plot(xs, ys, color=_WITHIN, linewidth=1, zorder=1)
    found = (search.seconds / size, _shown(search.error, low, high))
    axes.scatter(
        *found, s=110, marker="*", color=_FOUND, zorder=4, label="found", linewidths=0
    )
    axes.axhline(search.tolerance, color=INK, linewidth=0.8, linestyle="--")
    axes.annotate(
        "tolerance",
        (0, search.tolerance),
        xycoords=("axes fraction", "data"),
        xytext=(4, 3),
        textcoords="offset points",
        fontsize=8,
        color=INK,
    )
    axes.set_yscale("log")
    axes.set_ylim(low / 2, high * 1.5)
    axes.set_xlim(0, 1.04 * max(t.seconds for t in search.tried) / size)
    axes.set_xlabel(f"predicted time, {unit}", color=INK)
    axes.set_ylabel(f"{search.metric} against {search.reference}", color=INK)
    plain(axes, f"{search.name} on {search.target}: {search.speedup:.2f}x predicted")
    axes.grid(axis="y", color=FAINT, linewidth=0.4)
    axes.legend(frameon=False, labelcolor=INK, fontsize=8, loc="lower left")
    return figure


def _dots(
    axes: Axes, search: PrecisionSearch, size: float, low: float, high: float
) -> None:
    kinds = ((True, _WITHIN, "o", "within"), (False, _BEYOND, "x", "beyond"))
    for within, colour, marker, label in kinds:
        chosen = [t for t in search.tried if (t.error <= search.tolerance) == within]
        if chosen:
            xs = [t.seconds / size for t in chosen]
            ys = [_shown(t.error, low, high) for t in chosen]
            axes.scatter(xs, ys, s=22, color=colour, marker=marker, label=label)


def _limits(search: PrecisionSearch) -> tuple[float, float]:
    """The smallest and largest error that is drawn."""
    errors = [t.error for t in search.tried if 0 < t.error < math.inf]
    shown = [*errors, search.tolerance or _UNMEASURABLE]
    return min(shown) / 10, max(shown) * 3


def _shown(error: float | None, low: float, high: float) -> float:
    return min(max(error or 0.0, low), high)
