"""The lives of a storage's contents: from a write to the last use before the next
write.

Positions count the instructions of the program in the order of its text. A storage that
a device loop carries from one iteration to the next is alive in the whole loop.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple
from weakref import WeakKeyDictionary

from neuronjax.ir.kernel import (
    Access,
    KernelBlock,
    KernelInstruction,
    KernelProgram,
    Storage,
)

Segment = tuple[int, int]


class LiveRanges(NamedTuple):
    #: First and last position of every life of a storage, in order; a write of the
    #: whole storage begins a new life.
    segments: dict[Storage, list[Segment]]
    instructions: list[KernelInstruction]  # by position


def is_whole(access: Access) -> bool:
    """Return whether a view certainly covers its storage, with no element twice."""
    storage = access.storage
    if access.dynamic is not None or access.dtype != storage.dtype:
        return False
    if access.size != storage.size:
        return False
    return all(stride for stride, count in access.pattern if count > 1)


#: Results of `live_ranges`, kept while the program lives: several checks ask for them.
_KNOWN: WeakKeyDictionary[KernelProgram, LiveRanges] = WeakKeyDictionary()


def live_ranges(program: KernelProgram) -> LiveRanges:
    """Return the lives of every storage that an instruction accesses."""
    if (known := _KNOWN.get(program)) is not None:
        return known
    walk = _AccessEvents()
    walk.block(program.body)
    end = len(walk.instructions)
    for access in program.results:
        walk.events[access.storage].append((end, False))
    segments = {s: _segments(events) for s, events in walk.events.items()}
    return _KNOWN.setdefault(program, LiveRanges(segments, walk.instructions))


class _AccessEvents:
    """All accesses of every storage, each as (position, whether it begins a life)."""

    def __init__(self) -> None:
        self.events: dict[Storage, list[tuple[int, bool]]] = defaultdict(list)
        self.instructions: list[KernelInstruction] = []

    def block(self, block: KernelBlock) -> None:
        for item in block.items:
            if isinstance(item, KernelInstruction):
                self.instruction(item)
            else:
                self.loop(item.body)

    def instruction(self, i: KernelInstruction) -> None:
        position, events = len(self.instructions), self.events
        self.instructions.append(i)
        inputs = [a for a in i.inputs if isinstance(a, Access)]
        read = {a.storage for a in inputs}
        for access in (*filter(None, (a.index for a in i.accesses)), *inputs):
            events[access.storage].append((position, False))
        for access in i.outputs:
            begins = not i.reads_outputs and access.storage not in read
            begins = begins and is_whole(access)
            events[access.storage].append((position, begins))

    def loop(self, body: KernelBlock) -> None:
        first = len(self.instructions)
        before = {s: len(events) for s, events in self.events.items()}
        self.block(body)
        last = len(self.instructions) - 1
        if last < first:
            return
        ordinal = self.instructions[first].ordinal
        for storage, events in self.events.items():
            inner = events[before.get(storage, 0) :]
            if not inner or inner[0][1] or storage.position > ordinal:
                continue
            # Iterations read data of the previous iteration, or from before the loop.
            del events[before.get(storage, 0) :]
            events += [(first, False), (last, False)]


def _segments(events: list[tuple[int, bool]]) -> list[Segment]:
    segments: list[Segment] = []
    for position, begins in events:
        if not segments or (begins and position > segments[-1][1]):
            segments.append((position, position))
        else:
            segments[-1] = (segments[-1][0], max(position, segments[-1][1]))
    return segments
