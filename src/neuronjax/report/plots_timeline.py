"""The timeline of a profile: one lane for each queue.

A lane's height is the share of each short stretch of time in which its queue works, so
that areas are busy times; in a loop it is the mean over all turns. The longest events
are named where there is room.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from neuronjax.report.event_spans import busy_shares
from neuronjax.report.plots_style import COLOURS, FAINT, INK, SPILL_COLOUR, plain
from neuronjax.report.profile_tables import QUEUE_TITLES
from neuronjax.report.profile_usage import op_name
from neuronjax.report.quantities import percent, time_unit
from neuronjax.timing.timeline import LoopSpan, Timeline
from neuronjax.timing.work import QUEUES, Event, Queue, Transfer

_STRETCHES = 800
_HEIGHT = 0.8
#: Share of the picture's width that a character of a name takes.
_CHARACTER = 0.0085
_MOST_LOOPS = 8


def draw_timeline(axes: Axes, timeline: Timeline) -> None:
    """Draws the lanes, with their shares of the time beside them."""
    queues: list[Queue] = [q for q in QUEUES if timeline.busy_seconds(q) > 0]
    unit, name = time_unit(timeline.total_seconds)
    edges = np.linspace(0, timeline.total_seconds or 1e-9, _STRETCHES + 1)
    for place, queue in enumerate(queues):
        base = len(queues) - 1 - place - _HEIGHT / 2
        _draw_lane(axes, base, timeline, queue, edges, unit)
        _name_events(axes, base, timeline, queue, unit)
    _draw_loops(axes, timeline, unit, len(queues))
    _label(axes, timeline, queues)
    axes.set_xlim(0, edges[-1] / unit)
    axes.set_xlabel(f"time [{name}]", color=INK, fontsize=9)
    plain(axes, "Timeline: how busy each queue is")
    _legend(axes, timeline)


def _label(axes: Axes, timeline: Timeline, queues: Sequence[Queue]) -> None:
    total = timeline.total_seconds
    labels = [
        f"{QUEUE_TITLES[queue]}  {percent(timeline.busy_seconds(queue) / total)}"
        for queue in queues
    ]
    axes.set_yticks(range(len(queues) - 1, -1, -1), labels)
    top = 0.0 if not timeline.loops else 0.35
    axes.set_ylim(-0.6, len(queues) - 0.4 + top)


def _draw_lane(
    axes: Axes,
    base: float,
    timeline: Timeline,
    queue: Queue,
    edges: np.ndarray,
    unit: float,
) -> None:
    times = edges / unit
    axes.axhline(base, color=COLOURS[queue], linewidth=0.5)
    shares = _HEIGHT * busy_shares(timeline, queue, edges)
    axes.stairs(base + shares, times, baseline=base, fill=True, color=COLOURS[queue])
    if queue == "dma":
        spills = _HEIGHT * busy_shares(timeline, queue, edges, only=_is_spill)
        axes.stairs(base + spills, times, baseline=base, fill=True, color=SPILL_COLOUR)


def _is_spill(event: Event) -> bool:
    source = event.source
    return isinstance(source, Transfer) and source.reason.startswith("spill")


def _name_events(
    axes: Axes, base: float, timeline: Timeline, queue: Queue, unit: float
) -> None:
    """Names events that occupy their queue from start to end, where they fit."""
    total, taken = timeline.total_seconds, 0.0
    for event in timeline.of(queue):
        width = (event.end_seconds - event.start_seconds) / total
        if event.count > 1 or event.start_seconds < taken or width < 3 * _CHARACTER:
            continue
        if event.queue_seconds < 0.5 * width * total:
            continue
        name = _name(event, timeline)
        if len(name) * _CHARACTER > width:
            name = event.name.lower().replace("_", " ")
        if len(name) * _CHARACTER <= width:
            taken = event.end_seconds
            middle = (event.start_seconds + event.end_seconds) / 2 / unit
            _white(axes, middle, base + _HEIGHT / 4, name)


def _white(axes: Axes, x: float, y: float, text: str) -> None:
    axes.text(x, y, text, ha="center", va="center", fontsize=7, color="white")


def _name(event: Event, timeline: Timeline) -> str:
    if isinstance(event.source, Transfer) or event.instruction < 0:
        return event.name
    return op_name(timeline.instructions[event.instruction])


def _draw_loops(axes: Axes, timeline: Timeline, unit: float, lanes: int) -> None:
    """A bracket over every loop that is in no other."""
    loops = _outer_loops(timeline.loops)
    for loop in sorted(loops, key=_length)[-_MOST_LOOPS:]:
        start, end = loop.start_seconds / unit, loop.end_seconds / unit
        axes.axvspan(start, end, color=FAINT, alpha=0.18, linewidth=0)
        width = _length(loop) / timeline.total_seconds
        text = f"loop × {loop.trips:,}{'?' * loop.is_assumed}"
        if len(text) * _CHARACTER <= width:
            top = lanes - 0.4
            axes.text((start + end) / 2, top, text, ha="center", fontsize=8, color=INK)


def _length(loop: LoopSpan) -> float:
    return loop.end_seconds - loop.start_seconds


def _outer_loops(loops: Sequence[LoopSpan]) -> list[LoopSpan]:
    found: list[LoopSpan] = []
    for loop in loops:  # inner ones come before the outer
        found = [f for f in found if not _within(f, loop)]
        found.append(loop)
    return found


def _within(inner: LoopSpan, outer: LoopSpan) -> bool:
    return (
        outer.first_event <= inner.first_event and inner.last_event <= outer.last_event
    )


def _legend(axes: Axes, timeline: Timeline) -> None:
    """Colours are the lanes'; only what differs within a lane needs a name."""
    if any(_is_spill(event) for event in timeline.of("dma")):
        axes.legend(
            handles=[Patch(color=SPILL_COLOUR, label="spills to and from HBM")],
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            fontsize=8,
            frameon=False,
        )
