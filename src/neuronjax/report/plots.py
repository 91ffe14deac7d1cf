"""A profile as one picture: timeline, roofline, memory, or all three."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from neuronjax.errors import InvalidProgramError
from neuronjax.report.plots_memory import draw_hbm, draw_sbuf
from neuronjax.report.plots_roofline import draw_roofline
from neuronjax.report.plots_style import pictured
from neuronjax.report.plots_timeline import draw_timeline
from neuronjax.timing.memory_plan import MemoryPlan
from neuronjax.timing.timeline import Timeline
from neuronjax.timing.work import Core

_SIZES = {
    "timeline": (10.0, 4.0),
    "roofline": (8.5, 5.5),
    "memory": (10.0, 4.0),
    "all": (12.0, 9.0),
}


def draw(
    kind: str, timeline: Timeline, memory: MemoryPlan, core: Core, title: str
) -> Figure:
    """Return a figure; see `Profile.plot`."""
    if kind not in _SIZES:
        raise InvalidProgramError(
            f"a picture of kind {kind!r}", remedy=f"one of {', '.join(_SIZES)}"
        )
    return _draw(kind, timeline, memory, core, title)


@pictured
def _draw(figure: Figure, kind: str, *shown: Any) -> None:
    *panels, title = shown
    figure.set_size_inches(_SIZES[kind])
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    names = _draw_panels(figure, kind, *panels)
    figure.draw_without_rendering()  # text fits or not once the axes have their place
    for name in names:
        name()


def _draw_panels(
    figure: Figure, kind: str, timeline: Timeline, memory: MemoryPlan, core: Core
) -> list[Callable[[], None]]:
    """Draws what is asked for, and returns what then writes names into it."""
    if kind == "timeline":
        return [draw_timeline(figure.subplots(), timeline)]
    if kind == "roofline":
        return [draw_roofline(figure.subplots(), timeline, core)]
    if kind == "memory":
        sbuf, hbm = figure.subplots(1, 2)
        draw_sbuf(sbuf, timeline, memory, core)
        draw_hbm(hbm, timeline, memory, core)
        return []
    axes = figure.subplot_mosaic(
        [["time", "time"], ["roof", "sbuf"], ["roof", "hbm"]],
        height_ratios=(1.15, 0.8, 0.8),
        width_ratios=(1.1, 1),
    )
    draw_sbuf(axes["sbuf"], timeline, memory, core)
    draw_hbm(axes["hbm"], timeline, memory, core)
    return [
        draw_timeline(axes["time"], timeline),
        draw_roofline(axes["roof"], timeline, core),
    ]
