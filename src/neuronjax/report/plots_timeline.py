"""The timeline of a profile: one lane for each queue, below the phases and the loops.

A lane's height is the share of each short interval in which its queue works, so that
areas are busy times; in a loop it is the mean over all iterations. Phases are those of
a train step; each interval belongs to the phase that works most in it. Events are named
where the text fits; consecutive events of one name are named once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from neuronjax.ir.phases import PHASES, UNKNOWN
from neuronjax.report.event_spans import busy_shares, outermost
from neuronjax.report.plots_labels import SMALL, write_within
from neuronjax.report.plots_style import COLOURS, FAINT, INK, SPILL_COLOUR, plain
from neuronjax.report.profile_tables import QUEUE_TITLES
from neuronjax.report.profile_usage import op_name
from neuronjax.report.quantities import percent, seconds, time_unit
from neuronjax.timing.timeline import LoopSpan, Timeline
from neuronjax.timing.work import QUEUES, Event, Queue, Transfer, Work

PHASE_COLOURS: Mapping[str, str] = {
    "forward": "#BBBBBB",
    "backward": "#777777",
    "optimizer": "#505050",
}
"""Greys that every reader can tell apart. Colours are used for the queues."""

_STRETCHES, _PHASE_STRETCHES = 800, 200
_FEWEST_STRETCHES = 5  # shorter phases become part of the previous one
_HEIGHT = 0.8
_BAND = 0.36  # height of phases and loops
_BAND_STEP = 0.55
#: Colours that differ from those of phases.
_AROUND: Mapping[str, Any] = {"color": "#C8B58A", "linewidth": 0}
_LOOP: Mapping[str, Any] = {"color": FAINT, "alpha": 0.18, "linewidth": 0}
#: A run is named if its queue is busy for the share `_FILLED` of the run, and the run
#: takes the share `_NAMED_SHARE` of the whole time.
_FILLED, _NAMED_SHARE = 0.75, 0.01
#: Text is written where more than `_HIGH` of the lane's height is filled, and less than
#: `_LOW` of it with another colour.
_HIGH, _LOW = 0.5, 0.1
_WHOLE = 0.9  # the number of events is shown if this share of a run is filled
_MOST_LOOPS = 8
_IDLE = 1e-6  # smaller sums of spans are rounding errors
_LEAST_LANE = 1e-3  # queues with a smaller share have no lane
#: Events of one name are merged if the gap between them is a smaller share of the time.
_JOINED = 0.004


class Run(NamedTuple):
    """Consecutive events of one name: start, end and busy time, in seconds."""

    name: str
    start: float
    end: float
    events: int = 1
    busy: float = 0.0


@dataclass(frozen=True)
class _TimelineRows:
    timeline: Timeline
    unit: float
    queues: Sequence[Queue]
    idle: Sequence[Queue]
    phases: Sequence[Run]
    loops: Sequence[LoopSpan]

    @classmethod
    def of(cls, timeline: Timeline) -> _TimelineRows:
        unit, _ = time_unit(timeline.total_seconds)
        least = _LEAST_LANE * timeline.total_seconds
        busy: list[Queue] = [q for q in QUEUES if timeline.busy_seconds(q) > 0]
        queues: list[Queue] = [q for q in busy if timeline.busy_seconds(q) >= least]
        idle: list[Queue] = [q for q in busy if q not in queues]
        loops = dict.fromkeys(loop for loop in outermost(timeline) if loop is not None)
        longest = sorted(loops, key=lambda x: x.end_seconds - x.start_seconds)
        phases = phase_runs(timeline)
        return cls(timeline, unit, queues, idle, phases, longest[-_MOST_LOOPS:])

    def base(self, queue: Queue) -> float:
        return len(self.queues) - 1 - self.queues.index(queue) - _HEIGHT / 2

    @property
    def bands(self) -> dict[str, float]:
        """Return the middles of the rows of loops and phases, above the lanes."""
        present = {"loops": self.loops, "phase": self.phases}
        names = [name for name, found in present.items() if found]
        first = len(self.queues) - 0.25
        return {name: first + n * _BAND_STEP for n, name in enumerate(names)}


def draw_timeline(axes: Axes, timeline: Timeline) -> Callable[[], None]:
    """Draw the lanes, with their shares of the time beside them. Return a function that
    writes the names once the axes have their layout."""
    rows = _TimelineRows.of(timeline)
    edges = np.linspace(0, timeline.total_seconds or 1e-9, _STRETCHES + 1)
    if timeline.around_seconds:
        ends = timeline.scheduled_seconds, timeline.total_seconds
        axes.axvspan(*(end / rows.unit for end in ends), **_AROUND)
    for loop in rows.loops:
        span = loop.start_seconds / rows.unit, loop.end_seconds / rows.unit
        axes.axvspan(*span, **_LOOP)
    for queue in rows.queues:
        _draw_lane(axes, rows, queue, edges)
    for run in rows.phases:
        colour = PHASE_COLOURS[run.name]
        start, width = run.start / rows.unit, (run.end - run.start) / rows.unit
        place = rows.bands["phase"]
        axes.barh(place, width, _BAND, left=start, color=colour, linewidth=0)
    _label_rows(axes, rows)
    axes.set_xlim(0, edges[-1] / rows.unit)
    _, name = time_unit(timeline.total_seconds)
    idle = ", ".join(_titled(timeline, queue) for queue in rows.idle)
    words = f"time [{name}]; height of a lane: how busy its queue is"
    axes.set_xlabel(words + (f"; without a lane: {idle}" if idle else ""))
    plain(axes, "Timeline")
    _legend(axes, rows)
    return lambda: _name_all(axes, rows)


def _name_all(axes: Axes, rows: _TimelineRows) -> None:
    def write(texts: Sequence[str], run: Run, y: float, ink: str) -> None:
        write_within(axes, texts, run.start / rows.unit, run.end / rows.unit, y, ink)

    for run in rows.phases:
        ink = "black" if run.name == "forward" else "white"
        write([run.name], run, rows.bands["phase"], ink)
    for loop in rows.loops:
        turns = f"× {loop.trips:,}{'?' * loop.is_assumed}"
        run = Run("", loop.start_seconds, loop.end_seconds)
        write([f"loop {turns}", turns], run, rows.bands["loops"], INK)
    for queue in rows.queues:
        for run in _named_runs(rows.timeline, queue):
            full = _fullest(rows.timeline, queue, run)
            is_whole = full.end - full.start > _WHOLE * (run.end - run.start)
            times = f"{run.name} × {run.events}"
            counted = [times] if is_whole and run.events > 1 else []
            y = rows.base(queue) + _HEIGHT / 4
            is_light = queue in ("scalar", "dma", "gpsimd") and not _spills(run)
            write([*counted, run.name], full, y, "black" if is_light else "white")
    around = Run("", rows.timeline.scheduled_seconds, rows.timeline.total_seconds)
    took = seconds(rows.timeline.around_seconds)
    texts = f"start and end of the program: {took}", f"start, end: {took}"
    write(texts, around, (len(rows.queues) - 1) // 2, "black")


def _label_rows(axes: Axes, rows: _TimelineRows) -> None:
    labels = {
        rows.base(q) + _HEIGHT / 2: _titled(rows.timeline, q) for q in rows.queues
    }
    labels |= {y: name for name, y in rows.bands.items()}
    axes.set_yticks(list(labels), list(labels.values()))
    axes.set_ylim(-0.6, max([len(rows.queues) - 0.6, *labels]) + 0.25)


def _titled(timeline: Timeline, queue: Queue) -> str:
    # Collectives are not the work of an engine, so the row has their name.
    title = {**QUEUE_TITLES, "cc": "Collectives"}[queue]
    return f"{title}  {percent(timeline.busy_seconds(queue) / timeline.total_seconds)}"


def _draw_lane(
    axes: Axes, rows: _TimelineRows, queue: Queue, edges: np.ndarray
) -> None:
    base, times = rows.base(queue), edges / rows.unit
    axes.axhline(base, color=COLOURS[queue], linewidth=0.5)
    shares = _HEIGHT * busy_shares(rows.timeline, queue, edges)
    axes.stairs(base + shares, times, baseline=base, fill=True, color=COLOURS[queue])
    if queue == "dma":
        spills = _HEIGHT * busy_shares(rows.timeline, queue, edges, only=_is_spill)
        axes.stairs(base + spills, times, baseline=base, fill=True, color=SPILL_COLOUR)


def _is_spill(event: Event) -> bool:
    source = event.source
    return isinstance(source, Transfer) and source.reason.startswith("spill")


def phase_runs(timeline: Timeline) -> list[Run]:
    """Return runs of phases in order of time; [] if there is no backward pass. The
    phase of a time is the one in which most engines work.

    A phase that is too short to be seen becomes part of its neighbour."""
    works = {e.instruction for e in timeline.events if isinstance(e.source, Work)}
    of = {n: timeline.instructions[n].location.phase for n in sorted(works) if n >= 0}
    present: list[str] = [p for p in PHASES if p != UNKNOWN and p in of.values()]
    if "backward" not in present or not timeline.scheduled_seconds:
        return []
    edges = np.linspace(0, timeline.scheduled_seconds, _PHASE_STRETCHES + 1)
    busy = np.array([_shares(timeline, of, p, edges) for p in present])
    working = np.asarray((busy > _IDLE).any(axis=0))
    most = _busiest(busy, working)
    runs: list[Run] = []
    for number, places in itertools.groupby(range(len(most)), most.__getitem__):
        first, *rest = places
        last = first + len(rest)
        begin, end = edges[first if runs else 0], edges[last + 1]
        is_sliver = working[first : last + 1].sum() < _FEWEST_STRETCHES
        if runs and (is_sliver or runs[-1].name == present[number]):
            runs[-1] = runs[-1]._replace(end=end)
        elif not is_sliver:
            runs.append(Run(present[number], begin, end))
    return runs


def _shares(
    timeline: Timeline, of: Mapping[int, str], phase: str, edges: np.ndarray
) -> np.ndarray:
    """Return the busy shares of the engines for a phase, summed over queues. Transfers
    are left out, since loads run before the work that needs them."""

    def belongs(event: Event) -> bool:
        return isinstance(event.source, Work) and of.get(event.instruction) == phase

    shares = [busy_shares(timeline, queue, edges, only=belongs) for queue in QUEUES]
    return np.sum(shares, axis=0)


def _busiest(busy: np.ndarray, working: np.ndarray) -> list[int]:
    """Return the busiest phase of each time, or the last one if none is working."""
    last = np.maximum.accumulate(np.where(working, np.arange(len(working)), -1))
    last[last < 0] = working.argmax()
    return busy.argmax(axis=0)[last].tolist()


def _named_runs(timeline: Timeline, queue: Queue) -> Iterator[Run]:
    """Yield runs of events of one name in which the queue is busy most of the time."""
    total = timeline.total_seconds
    runs: list[Run] = []
    for event in timeline.of(queue):
        if event.count > 1:
            continue
        is_op = event.instruction >= 0 and not isinstance(event.source, Transfer)
        name = event.name.lower().replace("_", " ")
        if is_op:
            name = op_name(timeline.instructions[event.instruction])
        run = Run(
            name, event.start_seconds, event.end_seconds, busy=event.queue_seconds
        )
        last = runs[-1] if runs else None
        if last and last.name == run.name and run.start - last.end < _JOINED * total:
            busy, end = last.busy + run.busy, max(last.end, run.end)
            runs[-1] = last._replace(end=end, events=last.events + 1, busy=busy)
        elif last is None or run.start >= last.end:
            runs.append(run)
    long = (run for run in runs if run.end - run.start > _NAMED_SHARE * total)
    return (run for run in long if run.busy > _FILLED * (run.end - run.start))


def _fullest(timeline: Timeline, queue: Queue, run: Run) -> Run:
    """Return the longest part of a run in which the lane is filled with the colour of
    the run, so that a text does not cover gaps."""
    edges = np.linspace(0, timeline.total_seconds, _STRETCHES + 1)
    spills = busy_shares(timeline, queue, edges, only=_is_spill)
    shares = busy_shares(timeline, queue, edges)
    is_own = spills > _HIGH if _spills(run) else (shares > _HIGH) & (spills < _LOW)
    within = (edges[:-1] >= run.start) & (edges[1:] <= run.end)
    longest = run._replace(end=run.start)
    places = itertools.groupby(range(_STRETCHES), (is_own & within).__getitem__)
    for is_full, group in places:
        first, *rest = group
        start, end = edges[first], edges[first + len(rest) + 1]
        if is_full and end - start > longest.end - longest.start:
            longest = run._replace(start=start, end=end)
    return longest


def _spills(run: Run) -> bool:
    return run.name.startswith("spill")


def _legend(axes: Axes, rows: _TimelineRows) -> None:
    """Draw a legend of phases, loops and spills. The axis has the names of lanes."""
    present = {run.name for run in rows.phases}
    looks: dict[str, Mapping[str, Any]] = {
        p: {"color": grey} for p, grey in PHASE_COLOURS.items() if p in present
    }
    if any(_is_spill(event) for event in rows.timeline.of("dma")):
        looks["spills to and from HBM"] = {"color": SPILL_COLOUR}
        looks["other transfers"] = {"color": COLOURS["dma"]}
    if rows.loops:
        looks["loop"] = _LOOP
    if rows.timeline.around_seconds:
        looks["program's start and end"] = _AROUND
    if looks:
        axes.legend(
            handles=[Patch(label=name, **look) for name, look in looks.items()],
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            borderaxespad=0.2,
            fontsize=SMALL,
            ncols=len(looks),
            handlelength=1.4,
            columnspacing=1.2,
        )
