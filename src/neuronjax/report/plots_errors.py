"""Pictures of errors: along the ops of a program, and against predicted time."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from neuronjax.report.plots import Picture
from neuronjax.report.plots_style import FAINT, INK, annotate, plain
from neuronjax.report.quantities import time_unit

_ISOLATION, _ACCUMULATION, _FIRST = "#D55E00", "#0072B2", "#333333"
_MARKS = (":", "--", "-.", (0, (1, 4)))
_BACKWARD = "#EEEEEE"
_FEWEST_ERROR = 1e-12  # what is smaller is drawn at the bottom
_WITHIN, _BEYOND, _FOUND = "#0072B2", "#D55E00", "#009E73"
_UNMEASURABLE = 1e-9  # an error of zero is drawn a decade below the smallest

Row = Mapping[str, Any]


# -- along the ops ---------------------------------------------------------------------


def draw_errors(
    title: str,
    ops: Sequence[Row],
    computing: Container[int],
    marks: Sequence[tuple[int, str]],
) -> Figure:
    """Relative L2 error by op, in the run and in isolation.

    Ops without an error have no dot; an Inf or NaN that the reference lacks is a cross
    at the top. Grey is the backward pass. Ops that only move, whose numbers are not in
    `computing`, have no dot; `marks` are numbers and labels of ops that a report
    names."""
    figure = Picture(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot()
    arithmetic = [row for row in ops if row["number"] in computing]
    _shade_backward(axes, ops)
    run = _draw_ops(axes, arithmetic, "accumulation", _ACCUMULATION, "in the run")
    alone = _draw_ops(axes, arithmetic, "isolation", _ISOLATION, "in isolation")
    for (number, label), style in zip(marks, _MARKS, strict=False):
        axes.axvline(number, color=_FIRST, linewidth=0.8, linestyle=style, label=label)
    if not run + alone:  # a logarithmic axis has nothing to begin with
        axes.set_ylim(_FEWEST_ERROR, 1.0)
    axes.set_yscale("log")
    axes.set_xlabel("op, in program order", fontsize=9)
    axes.set_ylabel("relative L2 error", fontsize=9)
    axes.set_xlim(-1, len(ops))
    axes.tick_params(labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.set_title(title, loc="left", fontsize=11)
    figure.legend(loc="outside lower left", fontsize=8, frameon=False, ncols=3)
    return figure


def _shade_backward(axes: Axes, ops: Sequence[Row]) -> None:
    start, labelled = None, False
    for row in (*ops, None):
        inside = row is not None and row["module"].startswith("grad")
        number = len(ops) if row is None else row["number"]
        if inside and start is None:
            start = number
        elif not inside and start is not None:
            label = "" if labelled else "backward pass"
            span = start - 0.5, number - 0.5
            axes.axvspan(*span, color=_BACKWARD, linewidth=0, label=label)
            labelled = True
            start = None


def _draw_ops(
    axes: Axes, ops: Sequence[Row], kind: str, colour: str, label: str
) -> int:
    """Draws errors, and returns how many of them are finite."""
    found = [(r["number"], r[f"{kind}_relative_l2"]) for r in ops]
    differing = [r[f"{kind}_differing"] for r in ops]
    finite = [
        (n, max(error, _FEWEST_ERROR))
        for (n, error), differs in zip(found, differing, strict=True)
        if differs and math.isfinite(error)
    ]
    xs, ys = [n for n, _ in finite], [y for _, y in finite]
    size = 16 if kind == "isolation" else 6
    axes.scatter(xs, ys, s=size, color=colour, label=label, linewidths=0)
    broken = [n for n, error in found if math.isinf(error)]
    if broken:
        top = axes.get_xaxis_transform()
        axes.scatter(
            broken, [0.98] * len(broken), marker="x", color=colour, transform=top
        )
    return len(finite)


# -- against predicted time ------------------------------------------------------------


class Trial(NamedTuple):
    """A policy that was run: its predicted time, and its measured error."""

    seconds: float
    error: float


def draw_search(
    title: str,
    metric: str,
    tolerance: float,
    baseline_seconds: float,
    *,
    tried: Sequence[Trial],
    kept: Sequence[Trial],
    found: Trial,
) -> Figure:
    """Every policy tried is a dot; the line goes through what was kept, in order."""
    figure = Picture(figsize=(7.5, 4.6), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    size, unit = time_unit(baseline_seconds)
    low, high = _limits(tried, tolerance)
    _draw_trials(axes, tried, tolerance, size, low, high)
    xs = [trial.seconds / size for trial in kept]
    ys = [_shown(trial.error, low, high) for trial in kept]
    axes.plot(xs, ys, color=_WITHIN, linewidth=1, zorder=1)
    star = (found.seconds / size, _shown(found.error, low, high))
    axes.scatter(
        *star, s=110, marker="*", color=_FOUND, zorder=4, label="found", linewidths=0
    )
    axes.axhline(tolerance, color=INK, linewidth=0.8, linestyle="--")
    place = {"xycoords": ("axes fraction", "data"), "fontsize": 8}
    annotate(axes, "tolerance", (0, tolerance), (4, 3), **place)
    axes.set_yscale("log")
    axes.set_ylim(low / 2, high * 1.5)
    axes.set_xlim(0, 1.04 * max(t.seconds for t in tried) / size)
    axes.set_xlabel(f"predicted time, {unit}", color=INK)
    axes.set_ylabel(metric, color=INK)
    plain(axes, title)
    axes.grid(axis="y", color=FAINT, linewidth=0.4)
    axes.legend(frameon=False, labelcolor=INK, fontsize=8, loc="lower left")
    return figure


def _draw_trials(
    axes: Axes,
    tried: Sequence[Trial],
    tolerance: float,
    size: float,
    low: float,
    high: float,
) -> None:
    kinds = ((True, _WITHIN, "o", "within"), (False, _BEYOND, "x", "beyond"))
    for within, colour, marker, label in kinds:
        chosen = [t for t in tried if (t.error <= tolerance) == within]
        if chosen:
            xs = [t.seconds / size for t in chosen]
            ys = [_shown(t.error, low, high) for t in chosen]
            axes.scatter(xs, ys, s=22, color=colour, marker=marker, label=label)


def _limits(tried: Sequence[Trial], tolerance: float) -> tuple[float, float]:
    """The smallest and largest error that is drawn."""
    errors = [t.error for t in tried if 0 < t.error < math.inf]
    shown = [*errors, tolerance or _UNMEASURABLE]
    return min(shown) / 10, max(shown) * 3


def _shown(error: float, low: float, high: float) -> float:
    return min(max(error, low), high)
