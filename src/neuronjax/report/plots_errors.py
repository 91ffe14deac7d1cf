"""The errors of a comparison along the ops of a program."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from neuronjax.report.plots import Picture
from neuronjax.report.plots_style import INK, plain, shade_phases

_ISOLATION, _ACCUMULATION, _FIRST = "#D55E00", "#0072B2", "#333333"
_MARKS = (":", "--", "-.", (0, (1, 4)))
_EMPTY = 1e-12, 1.0  # the axis without an error
_KINDS = (
    ("accumulation", _ACCUMULATION, "in the run (inherited too)", 7),
    ("isolation", _ISOLATION, "in isolation (its own)", 16),
)

Row = Mapping[str, Any]


def draw_errors(
    title: str,
    ops: Sequence[Row],
    computing: Container[int],
    marks: Sequence[tuple[int, str]],
) -> Figure:
    """Relative L2 error by op, in the run and in isolation.

    Ops without an error have no dot; an Inf or NaN that the reference lacks is a cross
    at the top. Greys are the backward pass and the optimizer. Ops that only move, whose
    numbers are not in `computing`, have no dot; `marks` are numbers and labels of ops
    that a report names."""
    figure = Picture(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot()
    shade_phases(axes, [row["phase"] for row in ops])
    arithmetic = [row for row in ops if row["number"] in computing]
    shown = {kind: _finite(arithmetic, kind) for kind, *_ in _KINDS}
    errors = [error for found in shown.values() for _, error in found]
    axes.set_yscale("log")
    axes.set_ylim(*(min(errors) / 2, max(errors) * 3) if errors else _EMPTY)
    for kind, colour, label, size in _KINDS:
        places = zip(*shown[kind], strict=True) if shown[kind] else ([], [])
        axes.scatter(*places, linewidths=0, color=colour, label=label, s=size)
        _draw_broken(axes, arithmetic, kind, colour)
    for (number, label), style in zip(marks, _MARKS, strict=False):
        axes.axvline(number, color=_FIRST, linewidth=0.8, linestyle=style, label=label)
    axes.set_xlabel("op, in program order", color=INK, fontsize=9)
    axes.set_ylabel("relative L2 error", color=INK, fontsize=9)
    axes.set_xlim(-1, len(ops))
    plain(axes, title)
    figure.legend(loc="outside lower left", fontsize=8, frameon=False, ncols=3)
    return figure


def _finite(ops: Sequence[Row], kind: str) -> list[tuple[int, float]]:
    """Numbers and errors of the ops that have one."""
    found = [
        (row["number"], row[f"{kind}_relative_l2"])
        for row in ops
        if row[f"{kind}_differing"]
    ]
    return [(number, error) for number, error in found if 0 < error < math.inf]


def _draw_broken(axes: Axes, ops: Sequence[Row], kind: str, colour: str) -> None:
    """What has an Inf or a NaN of its own, at the top."""
    broken = [r["number"] for r in ops if math.isinf(r[f"{kind}_relative_l2"])]
    if broken:
        top = axes.get_xaxis_transform()
        heights = [0.98] * len(broken)
        axes.scatter(broken, heights, marker="x", color=colour, transform=top)
