"""A picture of a search for precision: predicted time against measured error.

The axis of errors is logarithmic. A line below it, named "exact", is for an error of
zero, and a line above for errors that are not finite.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from neuronjax.report.plots_labels import box_around, boxes_along, write_beside
from neuronjax.report.plots_style import FAINT, INK, annotate, pictured, plain
from neuronjax.report.quantities import time_unit

_WITHIN, _BEYOND, _FOUND = "#0072B2", "#D55E00", "#009E73"
_KINDS = (
    (True, _WITHIN, "o", "tried, within the tolerance"),
    (False, _BEYOND, "x", "tried, beyond the tolerance"),
)
_LONGEST_NAME = 34
#: An error that sets the limits of the axis if all errors and the tolerance are 0.
_UNMEASURABLE = 1e-9


class Trial(NamedTuple):
    """A policy that was run: its predicted time, its measured error, and its name."""

    seconds: float
    error: float
    name: str = ""


class _Scale(NamedTuple):
    """The axis of errors, from `low` to `high`; `exact` and `broken` are the positions
    of zero and of errors that are not finite."""

    low: float
    high: float

    @classmethod
    def of(cls, tried: Sequence[Trial], tolerance: float) -> _Scale:
        errors = [t.error for t in tried if 0 < t.error < math.inf]
        shown = [*errors, *([tolerance] if tolerance else [])] or [_UNMEASURABLE]
        return cls(min(shown) / 2, max(shown) * 2)

    @property
    def step(self) -> float:
        """Return the ratio of `low` to `exact`, which is that of `broken` to `high`."""
        return max(3.0, (self.high / self.low) ** 0.12)

    @property
    def exact(self) -> float:
        return self.low / self.step

    @property
    def broken(self) -> float:
        return self.high * self.step

    def place(self, error: float) -> float:
        if error == 0:
            return self.exact
        return error if error < math.inf else self.broken


@pictured
def draw_search(
    figure: Figure,
    title: str,
    metric: str,
    tolerance: float,
    margin: float,
    baseline_seconds: float,
    *,
    tried: Sequence[Trial],
    path: Sequence[Trial],
    found: Trial,
) -> None:
    """Draw a dot for every policy tried, and the path from the baseline to the result.

    Dots are named where there is room, dots of the path first. As in the search, an
    error must be within the tolerance even when it is multiplied by the margin."""
    figure.set_size_inches(7.5, 4.6)
    axes = figure.add_subplot()
    size, unit = time_unit(baseline_seconds)
    scale = _Scale.of(tried, tolerance)
    axes.set_yscale("log")
    for within, colour, marker, label in _KINDS:
        chosen = [t for t in tried if (t.error * margin <= tolerance) == within]
        if chosen:
            look = {"s": 22, "color": colour, "marker": marker, "label": label}
            axes.scatter(*_places(chosen, size, scale), **look)
    look = {"color": _WITHIN, "linewidth": 1, "zorder": 1, "label": "steps kept"}
    axes.plot(*_places(path, size, scale), **look)
    look = {"s": 110, "marker": "*", "color": _FOUND, "label": "found"}
    axes.scatter(*_places([found], size, scale), zorder=4, linewidths=0, **look)
    _draw_limit(axes, "tolerance", scale.place(tolerance), "bottom")
    if margin > 1 and tolerance:
        _draw_limit(axes, f"tolerance / {margin:g} (margin)", tolerance / margin, "top")
    axes.ticklabel_format(axis="x", useOffset=False)
    axes.set_xlabel(f"predicted time, {unit}")
    axes.set_ylabel(metric)
    plain(axes, title)
    axes.grid(axis="y", color=FAINT, linewidth=0.4)
    _draw_ends(axes, scale, [*tried, found])
    figure.legend(loc="outside lower left", ncols=4)
    figure.draw_without_rendering()  # names need the final layout of the axes
    _name(axes, path, tried, size, scale)


def _name(
    axes: Axes,
    path: Sequence[Trial],
    tried: Sequence[Trial],
    size: float,
    scale: _Scale,
) -> None:
    """Write the names of trials if there is room, each position and name once."""
    trials = [*path, *tried]
    places = [*zip(*_places(trials, size, scale), strict=True)]
    taken = [box_around(axes, at, 5) for at in places]
    for start, end in itertools.pairwise(places[: len(path)]):
        taken += boxes_along(axes, start, end)
    taken += [text.get_window_extent() for text in axes.texts]
    done: set[object] = set()
    for trial, at in zip(trials, places, strict=True):
        name = trial.name
        if len(name) > _LONGEST_NAME:  # the end of the name says most
            name = f"…{name[1 - _LONGEST_NAME :]}"
        if name and not done & {name, at} and write_beside(axes, name, at, taken, 5):
            done |= {name, at}


def _draw_limit(axes: Axes, name: str, at: float, va: str) -> None:
    axes.axhline(at, color=INK, linewidth=0.8, linestyle="--")
    place = {"xycoords": ("axes fraction", "data"), "va": va}
    offset = (4, 3 if va == "bottom" else -3)
    annotate(axes, name, (0, at), offset, fontsize=8, **place)


def _places(
    trials: Sequence[Trial], size: float, scale: _Scale
) -> tuple[list[float], list[float]]:
    return [t.seconds / size for t in trials], [scale.place(t.error) for t in trials]


def _draw_ends(axes: Axes, scale: _Scale, trials: Sequence[Trial]) -> None:
    errors = [trial.error for trial in trials]
    bottom, top = scale.low, scale.high
    side = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "center"}
    ends = (
        (scale.exact, "0: exact", 0.0 in errors),
        (scale.broken, "not finite", any(not e < math.inf for e in errors)),
    )
    for place, text, is_shown in ends:
        if is_shown:
            bottom, top = min(bottom, place / 2), max(top, place * 2)
            axes.axhline(place, color=FAINT, linewidth=0.8, linestyle=":", zorder=0)
            annotate(axes, text, (0, place), (-6, 0), fontsize=9, **side)
    axes.set_ylim(bottom, top)
    for minor in (False, True):
        ticks = axes.get_yticks(minor=minor)
        within = [tick for tick in ticks if scale.low <= tick <= scale.high]
        axes.set_yticks(within, minor=minor)
