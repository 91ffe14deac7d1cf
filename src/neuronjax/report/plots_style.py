"""What all pictures of a profile share: colours, axes of time, panels.

Figures are made without pyplot, so that drawing one touches no global state and needs
no display.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from neuronjax.timing.work import Queue

# Okabe and Ito's colours, told apart by all readers.
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
SPILL_COLOUR = "#8B1A1A"
INK = "#333333"
FAINT = "#BBBBBB"


#: What is shaded along a program, and its name: a pause of another phase that is
#: narrower than that, of all of it, divides nothing.
_SHADES = (
    ("backward", "#DDDDDD", "backward pass"),
    ("optimizer", "#F1F1F1", "optimizer"),
)
_NARROW = 0.02


def shade_phases(axes: Axes, phases: Sequence[str]) -> None:
    """Shades the phases after the forward pass, by the phase of every place."""
    for phase, colour, label in _SHADES:
        spans: list[list[float]] = []
        for place, each in enumerate(phases):
            if each == phase:
                if not spans or place - 0.5 - spans[-1][1] > _NARROW * len(phases):
                    spans.append([place - 0.5, place - 0.5])
                spans[-1][1] = place + 0.5
        for n, span in enumerate(spans):
            named = "" if n else label
            axes.axvspan(*span, color=colour, linewidth=0, zorder=0, label=named)


def annotate(
    axes: Axes,
    text: str,
    at: tuple[float, float],
    offset: tuple[float, float],
    **style: Any,
) -> None:
    """A small text that stands some points from a place."""
    style = {"fontsize": 7.5, "color": INK, **style}
    axes.annotate(text, at, xytext=offset, textcoords="offset points", **style)


def plain(axes: Axes, title: str) -> None:
    """A title, thin axes, and no frame."""
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(color=FAINT, labelcolor=INK, labelsize=9)


# -- where a logarithmic axis may begin, so that a few points do not stretch it --------

_GAP = 30.0
#: What is left below the axis at most, of all weights.
_MOST_BELOW = 0.1


def axis_floor(
    values: Sequence[float], weights: Sequence[float] | None = None
) -> float:
    """The smallest of the positive values that the axis shows.

    It is the smallest of all, unless those of a tenth of the weight at most lie below
    a gap of more than a decade and a half: then it is the first one above the gap.
    """
    weights = [1.0] * len(values) if weights is None else weights
    pairs = sorted(
        (v, w) for v, w in zip(values, weights, strict=True) if 0 < v < math.inf
    )
    whole = sum(w for _, w in pairs)
    floor, below = pairs[0][0], 0.0
    for (value, weight), (above, _) in itertools.pairwise(pairs):
        below += weight
        if below > _MOST_BELOW * whole:
            break
        if above > _GAP * value:
            floor = above
    return floor
