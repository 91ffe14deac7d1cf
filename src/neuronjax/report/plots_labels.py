"""Labels in pictures that are drawn only where they fit.

The size of a text is known once the axes have their layout, so a picture is drawn, laid
out, and then labelled. Boxes are in pixels of the figure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.text import Text
from matplotlib.transforms import Bbox

SMALL = 7.5
"""The smallest text of a picture, in points."""
_MARGIN = 3.0
_GAP = 5.0
#: Positions of a label beside a mark: offset, in units of the mark's radius plus
#: `_GAP`, and alignment.
_PLACES: Sequence[tuple[tuple[float, float], str, str]] = (
    ((1, 0), "left", "center"),
    ((-1, 0), "right", "center"),
    ((0, 1), "center", "bottom"),
    ((0, -1), "center", "top"),
    ((0.7, 0.7), "left", "bottom"),
    ((-0.7, 0.7), "right", "bottom"),
    ((0.7, -0.7), "left", "top"),
    ((-0.7, -0.7), "right", "top"),
)


def write_within(
    axes: Axes, texts: Iterable[str], start: float, end: float, y: float, ink: str
) -> Text | None:
    """Write the first text that fits between `start` and `end`, centred. Return it, or
    None if no text fits."""
    (left, _), (right, _) = axes.transData.transform([(start, y), (end, y)])
    centred = {"fontsize": SMALL, "ha": "center", "va": "center"}
    for text in texts:
        written = axes.text((start + end) / 2, y, text, color=ink, **centred)
        written.set_in_layout(False)
        if written.get_window_extent().width + 2 * _MARGIN <= right - left:
            return written
        written.remove()
    return None


def write_beside(
    axes: Axes, text: str, at: tuple[float, float], taken: list[Bbox], radius: float
) -> bool:
    """Write a text beside the mark at `at`, where it overlaps no box in `taken`.

    `radius` is the mark's radius in points. The text's box is added to `taken`. Return
    False if no position within the axes is free."""
    inside = axes.get_window_extent()
    for (x, y), ha, va in _PLACES:
        written = axes.annotate(
            text, at, xytext=(x * (radius + _GAP), y * (radius + _GAP)), ha=ha, va=va,
            textcoords="offset points", fontsize=SMALL, zorder=5,
        )  # fmt: skip
        written.set_in_layout(False)
        box = written.get_window_extent()
        holds = Bbox.union([inside, box]).bounds == inside.bounds
        if holds and not any(box.overlaps(other) for other in taken):
            taken.append(box)
            return True
        written.remove()
    return False


def box_around(axes: Axes, at: tuple[float, float], points: float) -> Bbox:
    """Return the box around the mark at `at`, whose radius is `points`."""
    x, y = axes.transData.transform(at)
    radius = points * axes.figure.dpi / 72
    return Bbox.from_extents(x - radius, y - radius, x + radius, y + radius)


def boxes_along(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], parts: int = 200
) -> list[Bbox]:
    """Return `parts` boxes that cover the line between two points."""
    first, last = axes.transData.transform([start, end])
    corners = np.linspace(first, last, parts + 1)
    return [
        Bbox.from_extents(min(a, c), min(b, d) - 1, max(a, c), max(b, d) + 1)
        for (a, b), (c, d) in itertools.pairwise(corners)
    ]
