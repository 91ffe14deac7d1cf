"""The timeline of a program or a kernel: events, loops and totals.

Seconds count from the start of the program. An event is an instruction's work on one
queue, or a transfer. Only the first iteration of a program's loop has events; the
`count` of an event is the number of iterations. A kernel's loops are unrolled first
(`kernel_unroll`), so every unrolled iteration has its own events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from neuronjax.ir.instruction import Instruction
from neuronjax.timing.memory_plan import MemoryPlan
from neuronjax.timing.work import QUEUES, Event, Queue, Work

#: Opcode of loading a function's table into ScalarE.
TABLE_LOAD = "ACT_TABLE_LOAD"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSpan:
    """A loop in the timeline.

    Attributes:
        start_seconds, end_seconds: the start of the first iteration and the end of the
            last iteration, in the first run of the loop.
        period_seconds: from the start of one iteration to the start of the next.
        first_event, last_event: `Timeline.events[first_event:last_event]` are the
            loop's events.
        count: how often the whole loop runs.
        is_assumed: whether `trips` is neither static nor given.
    """

    start_seconds: float
    end_seconds: float
    trips: int
    period_seconds: float
    first_event: int
    last_event: int
    count: int
    source: str
    is_assumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The totals of an instruction over all iterations of its loops.

    Attributes:
        seconds: busy seconds by queue.
        flops: floating-point operations of the program's matmuls.
        hardware_flops: floating-point operations that TensorE's array executes.
        read_bytes, write_bytes: bytes read from HBM, and written to HBM.
    """

    seconds: Mapping[Queue, float]
    flops: float
    hardware_flops: float
    read_bytes: int
    write_bytes: int


@dataclass(frozen=True, eq=False)
class Timeline:
    """The schedule of a program.

    Attributes:
        events: in order of issue; for a kernel, in the order of its instructions, with
            the loads of ScalarE's tables at the end.
        instructions: the instructions to which events belong: one per fused step, or
            the `KernelOp`s of a kernel.
        fused: for each of `instructions`, all the instructions that its step fuses.
        total_seconds: the end of the last event plus `around_seconds`.
        around_seconds: time that belongs to no event, see `Core`.
        notes: sentences for the user, such as assumed trip counts and branches, or a
            kernel's bottleneck.
    """

    events: Sequence[Event]
    instructions: tuple[Instruction, ...]
    fused: tuple[tuple[Instruction, ...], ...]
    total_seconds: float
    loops: tuple[LoopSpan, ...]
    notes: tuple[str, ...]
    memory: MemoryPlan
    around_seconds: float = 0.0

    @property
    def scheduled_seconds(self) -> float:
        """Return the seconds from the program's start to the end of its last event."""
        return self.total_seconds - self.around_seconds

    def busy_seconds(self, queue: Queue) -> float:
        """Return how long a queue works, over all iterations of all loops."""
        return self._busy[queue]

    @cached_property
    def _busy(self) -> Mapping[Queue, float]:
        busy: dict[Queue, float] = dict.fromkeys(QUEUES, 0.0)
        for event in self.events:
            busy[event.queue] += event.queue_seconds * event.count
        return MappingProxyType(busy)

    def of(self, queue: Queue) -> Iterator[Event]:
        return (event for event in self.events if event.queue == queue)

    @property
    def flops(self) -> float:
        """Return the floating-point operations of the program's matmuls."""
        return sum(
            e.source.flops * e.count for e in self.events if isinstance(e.source, Work)
        )

    @property
    def hbm_read_bytes(self) -> int:
        """Return the bytes that are read from HBM, over all iterations of loops."""
        return sum(e.source.hbm_read_bytes * e.count for e in self.events)

    @property
    def hbm_write_bytes(self) -> int:
        """Return the bytes that are written to HBM, over all iterations of loops."""
        return sum(e.source.hbm_write_bytes * e.count for e in self.events)

    @cached_property
    def totals(self) -> tuple[Totals, ...]:
        """Return the totals (seconds, operations, bytes) of each instruction."""
        events: list[list[Event]] = [[] for _ in self.instructions]
        for event in self.events:
            if event.instruction >= 0:
                events[event.instruction].append(event)
        return tuple(map(_totals, events))


def _totals(events: list[Event]) -> Totals:
    seconds: dict[Queue, float] = {}
    works = [(e.source, e.count) for e in events if isinstance(e.source, Work)]
    for event in events:
        busy = event.queue_seconds * event.count
        seconds[event.queue] = seconds.get(event.queue, 0.0) + busy
    return Totals(
        seconds=MappingProxyType(seconds),
        flops=sum(w.flops * n for w, n in works),
        hardware_flops=sum(w.hardware_flops * n for w, n in works),
        read_bytes=sum(e.source.hbm_read_bytes * e.count for e in events),
        write_bytes=sum(e.source.hbm_write_bytes * e.count for e in events),
    )
