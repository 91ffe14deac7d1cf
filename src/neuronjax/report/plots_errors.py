"""The errors of a comparison along the ops of a program.

The axis shows at most five decades: those below the largest error if they have half of
the ops, or else the five with the most ops. It shows fewer decades if only a few ops
are far below all others. Arrows at the bottom are smaller errors, at the top larger.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from neuronjax.report import plots_style

_ISOLATION, _ACCUMULATION, _FIRST = "#D55E00", "#0072B2", plots_style.INK
_MARKS = (":", "--", "-.", (0, (1, 4)))
_DECADES = 1e-5
_EMPTY = 1e-12, 1.0  # limits if no op has an error
_KINDS = (
    ("accumulation", _ACCUMULATION, "in the run (own and inherited)", 7),
    ("isolation", _ISOLATION, "in isolation (own only)", 16),
)

Row = Mapping[str, Any]


@plots_style.pictured
def draw_errors(
    figure: Figure,
    title: str,
    ops: Sequence[Row],
    computing: Container[int],
    marks: Sequence[tuple[int, str]],
) -> None:
    """Draw the relative L2 error by op, in the run and in isolation.

    Ops without an error, and ops that only move data (not in `computing`), have no dot;
    an Inf or NaN that the reference lacks is a cross at the top. Backward pass and
    optimizer are shaded grey. `marks` are numbers and labels of ops in a report."""
    figure.set_size_inches(8, 3.6)
    axes = figure.add_subplot()
    plots_style.shade_phases(axes, [row["phase"] for row in ops])
    arithmetic = [row for row in ops if row["number"] in computing]
    shown = {kind: _finite(arithmetic, kind) for kind, *_ in _KINDS}
    every = [error for found in shown.values() for _, error in found]
    low, high = _limits(every)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    for kind, colour, label, size in _KINDS:
        _draw_ops(axes, shown[kind], (low, high), color=colour, label=label, s=size)
        _draw_broken(axes, arithmetic, kind, colour)
    is_beyond = {
        ("v", "below the axis"): min(every, default=low) < low,
        ("^", "above the axis"): max(every, default=high) > high,
    }
    for (marker, label), is_used in is_beyond.items():
        if is_used:
            axes.scatter([], [], marker=marker, color=plots_style.FAINT, label=label)
    for (number, label), style in zip(marks, _MARKS, strict=False):
        axes.axvline(number, color=_FIRST, linewidth=0.8, linestyle=style, label=label)
    axes.set_xlabel("op, in program order")
    axes.set_ylabel("relative L2 error")
    axes.set_xlim(-1, len(ops))
    plots_style.plain(axes, title)
    figure.legend(loc="outside lower left", ncols=3)


def _limits(errors: Sequence[float]) -> tuple[float, float]:
    if not errors:  # a logarithmic axis needs a value
        return _EMPTY
    ordered = np.sort(errors)
    below = np.searchsorted(ordered, ordered * _DECADES)
    held = np.arange(1, len(ordered) + 1) - below  # ops in five decades
    most = len(held) - 1 - int(np.argmax(held[::-1]))
    top = ordered[-1 if 2 * held[-1] >= len(held) else most]
    inside = ordered[(top * _DECADES <= ordered) & (ordered <= top)]
    return plots_style.axis_floor(inside.tolist()) / 2, top * 3


def _finite(ops: Sequence[Row], kind: str) -> list[tuple[int, float]]:
    differing = [row for row in ops if row[f"{kind}_differing"]]
    found = [(row["number"], row[f"{kind}_relative_l2"]) for row in differing]
    return [(number, error) for number, error in found if 0 < error < math.inf]


def _draw_ops(
    axes: Axes,
    found: Sequence[tuple[int, float]],
    limits: tuple[float, float],
    **style: Any,
) -> None:
    low, high = limits
    inside = [(n, error) for n, error in found if low <= error <= high]
    axes.scatter([n for n, _ in inside], [e for _, e in inside], linewidths=0, **style)
    style |= {"label": "", "s": 14, "alpha": 0.5, "linewidths": 0}
    below = [n for n, error in found if error < low]
    above = [n for n, error in found if error > high]
    axes.scatter(below, [low * 1.2] * len(below), marker="v", **style)
    axes.scatter(above, [high / 1.2] * len(above), marker="^", **style)


def _draw_broken(axes: Axes, ops: Sequence[Row], kind: str, colour: str) -> None:
    """Draw ops with a new Inf or NaN as crosses at the top."""
    broken = [r["number"] for r in ops if math.isinf(r[f"{kind}_relative_l2"])]
    if broken:
        top = axes.get_xaxis_transform()
        heights = [0.98] * len(broken)
        axes.scatter(broken, heights, marker="x", color=colour, transform=top)
