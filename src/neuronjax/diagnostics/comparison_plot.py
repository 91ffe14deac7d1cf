"""The picture of a comparison: the error of every op along the program."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from neuronjax.diagnostics.op_errors import Errors
from neuronjax.diagnostics.op_records import OpRecord
from neuronjax.report.plots import Picture

if TYPE_CHECKING:
    from neuronjax.diagnostics.comparison import Comparison

_ISOLATION, _ACCUMULATION, _FIRST = "#D55E00", "#0072B2", "#333333"
_BACKWARD = "#EEEEEE"
_FEWEST_ERROR = 1e-12  # what is smaller is drawn at the bottom


def error_plot(comparison: Comparison) -> Figure:
    """Relative L2 error by op, in the run and in isolation.

    Ops without an error have no dot; an Inf or NaN that the reference lacks is a cross
    at the top. Grey is the backward pass.
    """
    figure = Picture(figsize=(8, 3.6), layout="constrained")
    axes = figure.add_subplot()
    arithmetic = [r for r in comparison.ops if r.is_arithmetic]
    _backward(axes, comparison.ops)
    _dots(axes, arithmetic, "accumulation", _ACCUMULATION, "in the run")
    _dots(axes, arithmetic, "isolation", _ISOLATION, "in isolation")
    first = comparison.first_divergence
    if first is not None:
        label = f"first divergence: op {first.record.number}, {first.record.short_op}"
        axes.axvline(
            first.record.number, color=_FIRST, linewidth=0.8, linestyle=":", label=label
        )
    axes.set_yscale("log")
    axes.set_xlabel("op, in program order", fontsize=9)
    axes.set_ylabel("relative L2 error", fontsize=9)
    axes.set_xlim(-1, len(comparison.ops))
    axes.tick_params(labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    title = f"{comparison.name}: {comparison.policy} against {comparison.reference}"
    axes.set_title(title, loc="left", fontsize=11)
    figure.legend(loc="outside lower left", fontsize=8, frameon=False, ncols=3)
    return figure


def _backward(axes: Axes, ops: tuple[OpRecord, ...]) -> None:
    start = None
    for record in (*ops, None):
        inside = record is not None and record.module.startswith("grad")
        number = len(ops) if record is None else record.number
        if inside and start is None:
            start = number
        elif not inside and start is not None:
            axes.axvspan(start - 0.5, number - 0.5, color=_BACKWARD, linewidth=0)
            start = None


def _dots(axes: Axes, ops: list[OpRecord], kind: str, colour: str, label: str) -> None:
    found = [(r.number, _errors(r, kind)) for r in ops]
    finite = [
        (n, max(e.relative_l2, _FEWEST_ERROR))
        for n, e in found
        if e.differing and math.isfinite(e.relative_l2)
    ]
    xs, ys = [n for n, _ in finite], [y for _, y in finite]
    size = 16 if kind == "isolation" else 6
    axes.scatter(xs, ys, s=size, color=colour, label=label, linewidths=0)
    broken = [n for n, e in found if math.isinf(e.relative_l2)]
    if broken:
        top = axes.get_xaxis_transform()
        axes.scatter(
            broken, [0.98] * len(broken), marker="x", color=colour, transform=top
        )


def _errors(record: OpRecord, kind: str) -> Errors:
    return record.isolation if kind == "isolation" else record.accumulation
