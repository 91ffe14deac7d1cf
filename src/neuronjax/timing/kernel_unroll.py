"""A kernel's blocks and device loops, unrolled to one stream of instructions.

A loop that would unroll to more than `MOST_INSTRUCTIONS` is truncated: the last
iteration in the stream represents the iterations left out. A trip count is static, or
the caller gives it for the loop's source line. A loop without a trip count counts as
one iteration, which a note reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from neuronjax.ir.kernel import KernelBlock, KernelInstruction, KernelLoop, KernelWhile
from neuronjax.timing import assumptions as a

#: Instructions that a device loop may unroll to before it is truncated.
MOST_INSTRUCTIONS = 100_000

Trips = Mapping[str | int, int]


@dataclass(frozen=True, slots=True)
class UnrolledLoop:
    """A device loop in a `Stream`.

    Attributes:
        edges: index of each iteration's first entry, then of the entry after the loop.
        is_assumed: whether the trip count is unknown, so that one iteration is assumed.
        count: how often the loop runs where this object stands; more than 1 if the last
            unrolled iteration of an outer loop stands for all later iterations.
    """

    edges: tuple[int, ...]
    trips: int
    source: str
    is_assumed: bool
    count: int

    @property
    def left_out(self) -> int:
        """Return how many iterations are not in the stream."""
        return self.trips - (len(self.edges) - 1)


@dataclass(slots=True)
class Stream:
    """The unrolled instructions of a kernel.

    Attributes:
        entries: instructions in the order of the kernel.
        blocks: by entry, a number that changes where an iteration begins or ends; the
            compiler moves no instruction from one block to another.
        counts: how often each entry is executed.
        loops: inner loops before outer loops.
    """

    entries: list[KernelInstruction] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    loops: list[UnrolledLoop] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    block: int = 0


def unrolled(body: KernelBlock, trips: Trips | None = None) -> Stream:
    """Return the instructions of a kernel, whose code is `body`, with loops unrolled.

    `trips` has the trip counts of loops by source line, such as "file.py:12"; folders
    before the file's name are ignored."""
    stream = Stream()
    given = {PurePath(str(line)).name: count for line, count in (trips or {}).items()}
    _add(stream, body, 1, given)
    return stream


def _add(
    stream: Stream, block: KernelBlock, count: int, trips: Mapping[str, int]
) -> None:
    for item in block.items:
        if isinstance(item, KernelInstruction):
            stream.entries.append(item)
            stream.blocks.append(stream.block)
            stream.counts.append(count)
        else:
            _add_loop(stream, item, count, trips)


def _add_loop(
    stream: Stream, loop: KernelLoop | KernelWhile, count: int, trips: Mapping[str, int]
) -> None:
    found = _trips(loop, trips)
    turns = 1 if found is None else found
    if found is None:
        stream.notes.append(
            f"loop at {loop.location or '?'}: assumed to run once; give the number of "
            "iterations with trips="
        )
    each = max(1, sum(1 for _ in loop.body.walk()))
    shown = turns
    if turns * each > MOST_INSTRUCTIONS:
        shown = min(turns, int(a.LOOP_TURNS.value))
    edges = []
    for turn in range(shown):
        edges.append(len(stream.entries))
        stream.block += 1
        last = turn == shown - 1
        _add(stream, loop.body, count * (turns - shown + 1 if last else 1), trips)
    stream.block += 1
    edges.append(len(stream.entries))
    stream.loops.append(
        UnrolledLoop(tuple(edges), turns, loop.location, found is None, count)
    )


def _trips(loop: KernelLoop | KernelWhile, given: Mapping[str, int]) -> int | None:
    if isinstance(loop, KernelLoop):
        start, stop = loop.start, loop.stop
        if isinstance(start, int) and isinstance(stop, int):
            return max(0, -(-(stop - start) // loop.step))
    return given.get(PurePath(loop.location).name)
