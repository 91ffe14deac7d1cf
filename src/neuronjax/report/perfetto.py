"""A timeline as a trace of Perfetto (ui.perfetto.dev), in Perfetto's protobuf format.

A trace has one process for the logical core, a track for each of its queues and one for
loops, a slice for each event, and counters of memory. Timestamps are whole nanoseconds,
as Perfetto requires; exact figures are among a slice's arguments. An event in pieces
has as many slices (32 at most), with the arguments at the first. Only the first
iteration of a loop has slices; `count` is the number of iterations. The library
`perfetto` writes the trace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from neuronjax.errors import UnsupportedError
from neuronjax.report.event_spans import Span, spans
from neuronjax.report.profile_events import event_rows
from neuronjax.report.profile_tables import QUEUE_TITLES
from neuronjax.timing.timeline import LoopSpan, Timeline
from neuronjax.timing.work import QUEUES, Queue

#: Samples of a counter: (seconds, bytes).
Samples = Iterable[tuple[float, float]]

_SEQUENCE = 1
_PROCESS = 1
# Unique identifiers of tracks, which are shown in their order.
_PROCESS_TRACK = 1
_LANES_OF_A_QUEUE = 1_000_000
_LOOP_TRACK = 2
_FIRST_COUNTER_TRACK = _LANES_OF_A_QUEUE * (len(QUEUES) + 1)
#: Types of arguments, and what their fields are named after; a bool is an int too.
_FIELDS = ((bool, "bool"), (int, "int"), (float, "double"), (object, "string"))
_PLACES = ("engine", "start_ts", "end_ts", "op")


def write_perfetto(
    timeline: Timeline,
    path: Path,
    *,
    process: str,
    counters: Mapping[str, Samples] | None = None,
) -> None:
    """Write a trace.

    The tracks are grouped under `process`, the chip and its core; `counters` are bytes
    over time, by name.

    Raises:
        UnsupportedError: the library perfetto is not installed.
    """
    try:
        from perfetto.trace_builder.proto_builder import TraceProtoBuilder
    except ImportError as error:
        raise UnsupportedError(
            "traces are written by Perfetto's library, which is not installed",
            remedy="pip install perfetto",
        ) from error
    trace = TraceProtoBuilder()
    descriptor = _packet(trace).track_descriptor
    descriptor.uuid = _PROCESS_TRACK
    descriptor.process.pid = _PROCESS
    descriptor.process.process_name = process
    descriptor.child_ordering = descriptor.EXPLICIT
    free: dict[Queue, list[int]] = defaultdict(list)
    for span, queue, row in sorted(_slices(timeline), key=lambda item: item[0]):
        track = _lane(trace, free[queue], queue, span)
        _slice(trace, track, span, row["op"] or row["opcode"], row)
    _loops(trace, timeline.loops)
    for place, (name, samples) in enumerate((counters or {}).items()):
        _counter(trace, _FIRST_COUNTER_TRACK + place, name, samples)
    path.write_bytes(trace.serialize())


def _packet(trace: Any, seconds: float | None = None) -> Any:
    packet = trace.add_packet()
    packet.trusted_packet_sequence_id = _SEQUENCE
    if seconds is not None:
        packet.timestamp = _nanoseconds(seconds)
    return packet


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _track(trace: Any, uuid: int, name: str) -> Any:
    descriptor = _packet(trace).track_descriptor
    descriptor.uuid = uuid
    descriptor.parent_uuid = _PROCESS_TRACK
    descriptor.name = name
    descriptor.sibling_order_rank = uuid
    return descriptor


def _slices(timeline: Timeline) -> Iterator[tuple[Span, Queue, Mapping[str, Any]]]:
    """Yield every piece of every event; only the first has all arguments."""
    for event, row in zip(timeline.events, event_rows(timeline), strict=True):
        first, *others = spans(event)
        yield first, event.queue, row
        for place, span in enumerate(others, start=2):
            part = f"{place} of {len(others) + 1}"
            names = {key: row[key] for key in ("op", "opcode", "count")}
            yield span, event.queue, {**names, "part": part}


def _lane(trace: Any, free: list[int], queue: Queue, span: Span) -> int:
    """Return the track of the next slice; slices come in order of their starts.

    Overlapping slices are on several tracks of one name, which Perfetto shows as one;
    on a single track it would nest them. `free` has the time in nanoseconds from which
    each of the queue's tracks is free."""
    start, end = map(_nanoseconds, span)
    lane = next((n for n, until in enumerate(free) if until <= start), len(free))
    track = _LANES_OF_A_QUEUE * (QUEUES.index(queue) + 1) + lane
    if lane == len(free):
        free.append(0)
        _track(trace, track, QUEUE_TITLES[queue])
    free[lane] = end
    return track


def _loops(trace: Any, loops: Sequence[LoopSpan]) -> None:
    if loops:
        _track(trace, _LOOP_TRACK, "loops")
    # Outer loops first: Perfetto nests a slice that begins later or is shorter.
    for loop in sorted(loops, key=lambda x: (x.start_seconds, -x.end_seconds)):
        details = {
            "trips": loop.trips,
            "period_ns": loop.period_seconds * 1e9,
            "count": loop.count,
            "source_location": loop.source,
            "is_assumed": loop.is_assumed,
        }
        span = (loop.start_seconds, loop.end_seconds)
        _slice(trace, _LOOP_TRACK, span, f"loop of {loop.trips}", details)


def _slice(
    trace: Any, track: int, span: Span, name: str, details: Mapping[str, Any]
) -> None:
    begin = _packet(trace, span[0]).track_event
    begin.type = begin.TYPE_SLICE_BEGIN
    begin.track_uuid = track
    begin.name = name
    for key, value in details.items():
        if value and key not in _PLACES:
            annotation = begin.debug_annotations.add()
            annotation.name = key
            field = next(name for kind, name in _FIELDS if isinstance(value, kind))
            setattr(annotation, f"{field}_value", value)
    end = _packet(trace, span[1]).track_event
    end.type = end.TYPE_SLICE_END
    end.track_uuid = track


def _counter(trace: Any, uuid: int, name: str, samples: Samples) -> None:
    descriptor = _track(trace, uuid, name)
    descriptor.counter.unit = descriptor.counter.UNIT_SIZE_BYTES
    for seconds, value in samples:
        event = _packet(trace, seconds).track_event
        event.type = event.TYPE_COUNTER
        event.track_uuid = uuid
        event.counter_value = round(value)
