"""Helpers of all pictures: display in notebooks, colours, axes of time, panels.

A picture has no background, and its ink is readable on light and dark pages. It is a
pyplot figure if pyplot shows figures, so that a notebook displays it even if it is not
the value of the cell, with the notebook's resolution and formats.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from neuronjax.timing.work import Queue

# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLOURS: Mapping[Queue, str] = {
    "tensor": "#0072B2",
    "vector": "#009E73",
    "scalar": "#E69F00",
    "gpsimd": "#CC79A7",
    "sync": "#7F7F7F",
    "dma": "#56B4E9",
    "cc": "#D55E00",
    "host": "#4D4D4D",
}
"""The colour of a queue in every picture."""
SPILL_COLOUR = "#3C7894"  # the hue of "dma", darker
#: The colour of text: its contrast is above 4 on white and on JupyterLab's black.
INK = "#777777"
FAINT = "#999999"
_STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor"), INK),
    **{"axes.facecolor": "none", "axes.edgecolor": FAINT, "axes.labelsize": 9},
    **{"axes.spines.top": False, "axes.spines.right": False},
    **{"legend.frameon": False, "legend.fontsize": 8},
}


class Picture(Figure):
    """A figure that a notebook shows once."""

    def _ipython_display_(self) -> None:
        """Show the figure in the notebook's formats, and not again below the cell."""
        from IPython.display import display  # only IPython calls this method

        if pyplot := sys.modules.get("matplotlib.pyplot"):
            pyplot.close(self)
        vars(self)["_ipython_display_"] = None  # or `display` would call this method
        display(self)  # pyplot would add a background
        del vars(self)["_ipython_display_"]


P = ParamSpec("P")


def pictured(draw: Callable[Concatenate[Figure, P], object]) -> Callable[P, Figure]:
    """Return a function that makes a figure in the common style and draws into it."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        make: Callable[..., Figure] = Picture
        may_show = {"matplotlib.pyplot", "ipykernel"} & {*sys.modules}
        if may_show and mpl.get_backend().lower() != "agg":
            from matplotlib import pyplot  # pyplot keeps figures until they are shown

            make = functools.partial(pyplot.figure, FigureClass=Picture)
        figure = make(layout="constrained", facecolor="none")
        with mpl.rc_context(_STYLE):  # pyplot's first figure sets global parameters
            draw(figure, *args, **kwargs)
        return figure

    return drawn


#: Shaded phases: name, opacity and label. A gap in a phase that is narrower than the
#: share `_NARROW` of the program is shaded too.
_SHADES = (("backward", 0.3, "backward pass"), ("optimizer", 0.12, "optimizer"))
_NARROW = 0.02


def shade_phases(axes: Axes, phases: Sequence[str]) -> None:
    """Shade backward pass and optimizer; `phases` has the phase at x = 0, 1, ..."""
    for phase, alpha, label in _SHADES:
        spans: list[list[float]] = []
        for place, each in enumerate(phases):
            if each == phase:
                if not spans or place - 0.5 - spans[-1][1] > _NARROW * len(phases):
                    spans.append([place - 0.5, place - 0.5])
                spans[-1][1] = place + 0.5
        for n, span in enumerate(spans):
            named = "" if n else label
            look = {"color": FAINT, "alpha": alpha, "linewidth": 0, "zorder": 0}
            axes.axvspan(*span, **look, label=named)


def annotate(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    offset: tuple[float, float],
    **style: Any,
) -> None:
    """Write a small text with an offset, in points (1/72 inch), from a point."""
    place = {"xytext": offset, "textcoords": "offset points", "fontsize": 7.5}
    axes.annotate(text, at, **(place | style))


def plain(axes: Axes, title: str) -> None:
    """Write a title, and make the ticks faint."""
    axes.set_title(title, loc="left", fontsize=11)
    axes.tick_params(which="both", color=FAINT, labelcolor=INK, labelsize=9)


_GAP = 30.0
#: The largest share of all weights that may be below the axis.
_MOST_BELOW = 0.1


def axis_floor(
    values: Sequence[float], weights: Sequence[float] | None = None
) -> float:
    """Return the smallest of the positive values that the axis shows.

    It is the smallest of all, unless there is a gap of more than a factor `_GAP`, and
    the values below the gap have at most a tenth of the weight. It is then the first
    value above the gap, so that outliers do not stretch a logarithmic axis."""
    weights = [1.0] * len(values) if weights is None else weights
    every = zip(values, weights, strict=True)
    pairs = sorted((v, w) for v, w in every if 0 < v < math.inf)
    whole = sum(w for _, w in pairs)
    floor, below = pairs[0][0], 0.0
    for (value, weight), (above, _) in itertools.pairwise(pairs):
        below += weight
        if below > _MOST_BELOW * whole:
            break
        if above > _GAP * value:
            floor = above
    return floor
