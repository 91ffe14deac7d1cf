"""A profile as one picture: timeline, roofline, memory, or all three."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from neuronjax.policy.values import check_word
from neuronjax.report.plots_memory import draw_hbm, draw_sbuf
from neuronjax.report.plots_roofline import draw_roofline
from neuronjax.report.plots_style import pictured
from neuronjax.report.plots_timeline import draw_timeline
from neuronjax.timing.memory_plan import MemoryPlan
from neuronjax.timing.timeline import Timeline
from neuronjax.timing.work import Core

_GRIDS: dict[str, Any] = {
    "timeline": [["time"]],
    "roofline": [["roof"]],
    "memory": [["sbuf", "hbm"]],
    "all": [["time", "time"], ["roof", "sbuf"], ["roof", "hbm"]],
}
"""Kind of picture -> its panels."""
_SIZES = {"roofline": (8.5, 5.5), "all": (12.0, 9.0)}
_RATIOS = {"all": {"height_ratios": (1.15, 0.8, 0.8), "width_ratios": (1.1, 1)}}


def draw(
    kind: str, timeline: Timeline, memory: MemoryPlan, core: Core, title: str
) -> Figure:
    """Return a figure; see `Profile.plot`."""
    check_word("kind", kind, _GRIDS)
    return _draw(kind, timeline, memory, core, title)


@pictured
def _draw(
    figure: Figure,
    kind: str,
    timeline: Timeline,
    memory: MemoryPlan,
    core: Core,
    title: str,
) -> None:
    figure.set_size_inches(_SIZES.get(kind, (10.0, 4.0)))
    figure.suptitle(title, x=0.01, ha="left", fontsize=12)
    panels = figure.subplot_mosaic(_GRIDS[kind], **_RATIOS.get(kind, {}))
    names: list[Callable[[], None]] = []
    if "sbuf" in panels:
        draw_sbuf(panels["sbuf"], timeline, memory, core)
        draw_hbm(panels["hbm"], timeline, memory, core)
    if "time" in panels:
        names.append(draw_timeline(panels["time"], timeline))
    if "roof" in panels:
        names.append(draw_roofline(panels["roof"], timeline, core))
    figure.draw_without_rendering()  # labels need the final layout of the axes
    for name in names:
        name()
