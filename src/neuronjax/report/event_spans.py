"""The times at which an event or a loop occupies a queue.

An event may be in pieces, between which other events run; its spans add up to the time
that it occupies the queue. Seconds count from the start of the program.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from neuronjax.timing.timeline import LoopSpan, Timeline
from neuronjax.timing.work import Event, Queue

Span = tuple[float, float]
MOST_SPANS = 32


def spans(event: Event) -> list[Span]:
    """Return start and end of an event's pieces, in the first iteration of a loop.

    If there are more than `MOST_SPANS` pieces, they are merged into `MOST_SPANS`."""
    busy = event.queue_seconds
    whole = event.end_seconds - event.start_seconds
    count = min(event.pieces, MOST_SPANS)
    if count <= 1 or busy >= whole:
        return [(event.start_seconds, event.start_seconds + busy)]
    length = busy / count
    step = (whole - length) / (count - 1)
    starts = [event.start_seconds + place * step for place in range(count)]
    return [(start, start + length) for start in starts]


def outermost(timeline: Timeline) -> list[LoopSpan | None]:
    """Return the outermost loop around each event."""
    found: list[LoopSpan | None] = [None] * len(timeline.events)
    for loop in timeline.loops:  # inner loops come first
        for place in range(loop.first_event, loop.last_event):
            found[place] = loop
    return found


def busy_shares(
    timeline: Timeline,
    queue: Queue,
    edges: np.ndarray,
    only: Callable[[Event], bool] | None = None,
) -> np.ndarray:
    """Return the share of each interval between edges in which a queue works on the
    events that `only` accepts; events in a loop are spread over its iterations."""
    weighted = []
    for event, loop in zip(timeline.events, outermost(timeline), strict=True):
        if event.queue != queue or (only is not None and not only(event)):
            continue
        if loop is None:
            weighted += [(*span, 1.0) for span in spans(event)]
        else:
            whole = loop.end_seconds - loop.start_seconds
            weight = event.queue_seconds * event.count / whole if whole else 0.0
            weighted.append((loop.start_seconds, loop.end_seconds, weight))
    if not weighted:
        return np.zeros(len(edges) - 1)
    starts, ends, weights = np.array(weighted).T
    done = _before(edges, starts, weights) - _before(edges, ends, weights)
    return np.clip(np.diff(done) / np.diff(edges), 0.0, 1.0)


def _before(edges: np.ndarray, times: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the sum of weight x (edge - time) over the times before each edge."""
    order = np.argsort(times)
    times, weights = times[order], weights[order]
    count = np.searchsorted(times, edges)
    total = np.concatenate([[0.0], np.cumsum(weights)])[count]
    moment = np.concatenate([[0.0], np.cumsum(weights * times)])[count]
    return total * edges - moment
