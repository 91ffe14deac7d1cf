"""The `Timeline` of a kernel's schedule, which every report can read.

An event is an execution of an instruction; instructions with the same line, name and
operator belong to one `KernelOp`. The queues are those of a logical core. If it has two
physical cores, an event of one of them occupies half of a queue; a collective occupies
the whole queue. A transfer that uses a part of the DMA engines occupies the same part
of the DMA queue.

`KernelMemory`, the `MemoryPlan` of a kernel, divides the time into equal parts, and has
the highest memory use in each part. A storage (the memory of a tensor of the kernel) is
in use from its first access to its last. Its bytes count for all partitions, even if it
uses only some of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from neuronjax.ir.instruction import Engine, Instruction
from neuronjax.ir.kernel import KernelInstruction, KernelProgram
from neuronjax.ir.program import Location
from neuronjax.timing import assumptions as a
from neuronjax.timing.engines.dma import engines
from neuronjax.timing.fused import Fused, TiledRegion
from neuronjax.timing.kernel_operands import numpy_dtype, row_bytes
from neuronjax.timing.kernel_queues import ISSUERS
from neuronjax.timing.kernel_schedule import KernelSchedule
from neuronjax.timing.memory_plan import (
    CATEGORIES,
    BlockPlan,
    Category,
    HbmPeak,
    MemoryPlan,
    Tensor,
    Unit,
)
from neuronjax.timing.timeline import TABLE_LOAD, LoopSpan, Timeline
from neuronjax.timing.work import Core, Event, Queue, Transfer, Work

#: Opcode of the event in which an engine issues a transfer: SyncE commands the hardware
#: that generates descriptors, or GpSimdE generates descriptors in software.
ISSUE = "DMA_ISSUE"


@dataclass(frozen=True, kw_only=True)
class KernelOp(Instruction):
    """The instructions of a kernel that have the same source line, the same function of
    nki.isa and the same operator.

    Attributes:
        function: the name of the function of nki.isa.
        op: the operator or activation function of the instructions; "" for none.
    """

    function: str
    op: str = ""

    @property
    def name(self) -> str:
        return self.function

    def attributes(self) -> dict[str, str]:
        """Return {"op": the operator}; {} if the instructions have no operator."""
        return {"op": self.op} if self.op else {}


def kernel_timeline(schedule: KernelSchedule) -> Timeline:
    ops, numbers = _ops(schedule.stream.entries)
    events, loops = _events(schedule, numbers)
    return Timeline(
        events=tuple(events),
        instructions=ops,
        fused=tuple((op,) for op in ops),
        total_seconds=schedule.total_seconds,
        around_seconds=schedule.around_seconds,
        loops=loops,
        notes=(*schedule.notes, *_bottleneck_note(schedule, ops, numbers)),
        memory=kernel_memory(schedule),
    )


def _ops(
    entries: Sequence[KernelInstruction],
) -> tuple[tuple[KernelOp, ...], list[int]]:
    known: dict[tuple[str, str, str], int] = {}
    ops: list[KernelOp] = []
    numbers = []
    for i in entries:
        attributes = i.attributes
        detail = attributes.get("op") or attributes.get("op0") or ""
        key = (i.name, i.location, detail)
        if key not in known:
            known[key] = len(ops)
            ops.append(_op(i, str(detail)))
        numbers.append(known[key])
    return tuple(ops), numbers


def _op(i: KernelInstruction, detail: str) -> KernelOp:
    file, _, line = i.location.rpartition(":")
    engine: Engine = i.engine  # type: ignore[assignment]
    return KernelOp(
        operands=(),
        results=(),
        engine=engine,
        location=Location("", file, int(line) if line.isdecimal() else 0),
        function=i.name,
        op=detail,
    )


# -- events ----------------------------------------------------------------------------


def _events(
    s: KernelSchedule, numbers: Sequence[int]
) -> tuple[list[Event], tuple[LoopSpan, ...]]:
    cores = s.core.lnc
    one = engines(Core(s.core.chip, 1))
    events: list[Event] = []
    first: list[int] = []
    issued = {n: start for start, n in s.issues}
    for n, p in enumerate(s.priced):
        first.append(len(events))
        count = s.stream.counts[n]
        start, end, wait = s.starts[n], s.ends[n], s.waits[n]
        number = numbers[n]
        queue = p.work.queue
        if queue == "dma":
            busy = p.work.seconds * p.dma_engines[1] / one / cores
        else:
            busy = (end - start) / (cores if queue != "cc" else 1)
        for source in p.moves or (p.work,):
            name = _name(source)
            events.append(
                Event(queue, start, end, name, source, number, count, wait, 1, busy)
            )
            busy = 0.0
        if n in issued:
            queue, spent = ISSUERS[p.ring], p.issue_seconds
            issue = Work(queue=queue, seconds=spent, opcode=ISSUE)
            events.append(_added(issue, issued[n], cores, number, count))
    first.append(len(events))
    spans = tuple(_span(s, n, first) for n in range(len(s.stream.loops)))
    for start, _, _ in s.loads:
        load = Work(queue="scalar", seconds=a.TABLE_LOAD.value, opcode=TABLE_LOAD)
        events.append(_added(load, start, cores))
    return events, spans


def _name(source: Work | Transfer) -> str:
    if isinstance(source, Work):
        return source.opcode
    return "load" if source.is_read else "store"


def _added(
    work: Work, start: float, cores: int, number: int = -1, count: int = 1
) -> Event:
    end, busy = start + work.seconds, work.seconds / cores
    of = (work.opcode, work, number, count)
    return Event(work.queue, start, end, *of, queue_seconds=busy)


def _span(s: KernelSchedule, number: int, first: Sequence[int]) -> LoopSpan:
    loop = s.stream.loops[number]
    begin, end = loop.edges[0], loop.edges[-1]
    start = min(s.starts[begin:end], default=0.0)
    stop = max(s.ends[begin:end], default=start)
    return LoopSpan(
        start_seconds=start,
        end_seconds=stop + loop.left_out * s.periods[number],
        trips=loop.trips,
        period_seconds=s.periods[number],
        first_event=first[begin],
        last_event=first[end],
        count=loop.count,
        source=loop.source,
        is_assumed=loop.is_assumed,
    )


# -- the bottleneck --------------------------------------------------------------------


def critical_seconds(s: KernelSchedule) -> dict[tuple[Queue, int], float]:
    """Return the seconds of the critical path, by (queue, index of an instruction in
    the kernel's stream).

    The path leads backwards from the last result to the start, from each instruction to
    the one that decided its start. An instruction counts for the time from its start to
    the start of the next instruction on the path. Loop iterations that are not in the
    stream do not count."""
    found: dict[tuple[Queue, int], float] = defaultdict(float)
    if not s.priced:
        return found
    n = max(
        range(len(s.ends)), key=lambda e: s.ends[e] + s.priced[e].work.latency_seconds
    )
    end = s.ends[n] + s.priced[n].work.latency_seconds
    while n >= 0:
        p, cause = s.priced[n], s.causes[n]
        start = min(end, s.starts[n] - (p.start_seconds if p.ring else 0.0))
        if cause < 0:
            start = 0.0
        issuing = p.ring in ISSUERS and end - start <= p.issue_seconds * 1.001
        found[ISSUERS[p.ring] if issuing else p.work.queue, n] += end - start
        end, n = start, cause
    return found


def _bottleneck_note(
    s: KernelSchedule, ops: Sequence[KernelOp], numbers: Sequence[int]
) -> tuple[str, ...]:
    whole = bottleneck(s, numbers)
    if whole is None:
        return ()
    queue, number, share = whole
    op = ops[number]
    named = f"{op.name}.{op.op}" if op.op else op.name
    file = op.location.source.rpartition("/")[2]
    return (
        f"{share:.0%} of the critical path is on {queue}: {named} at {file or '?'}",
    )


def bottleneck(
    s: KernelSchedule, numbers: Sequence[int] | None = None
) -> tuple[Queue, int, float] | None:
    """Return (queue, index of a `KernelOp`, share of the critical path) for the pair of
    a queue and an op that has the largest share; None if the path takes no time.

    `numbers` has, by instruction of the stream, the index of its op; None means that
    the indices are computed here."""
    if numbers is None:
        _, numbers = _ops(s.stream.entries)
    spent: dict[tuple[Queue, int], float] = defaultdict(float)
    for (queue, entry), seconds in critical_seconds(s).items():
        spent[queue, numbers[entry]] += seconds
    total = sum(spent.values())
    if not total:
        return None
    (queue, number), seconds = max(spent.items(), key=lambda item: item[1])
    return queue, number, seconds / total


# -- memory ----------------------------------------------------------------------------


_STRETCHES = 400
_SHOWN = 8


@dataclass(frozen=True, slots=True, eq=False)
class KernelMemory(MemoryPlan):
    """The memory use of a kernel over time: a `MemoryPlan` whose block `main` has one
    unit for each of many equal parts of the kernel's time.

    Attributes:
        edges: the seconds at which each part starts, then the end of the last part.
        psum_usage: by part, the most bytes of PSUM (all partitions) in use at once.
    """

    edges: tuple[float, ...] = ()
    psum_usage: tuple[int, ...] = ()


def kernel_memory(schedule: KernelSchedule) -> KernelMemory:
    hbm = _hbm(schedule.program)
    usage = {memory: _usage(schedule, memory) for memory in ("sbuf", "psum")}
    count = len(usage["sbuf"])
    step = schedule.total_seconds / count
    units = [Unit(region=TiledRegion(), sbuf_bytes=held) for held in usage["sbuf"]]
    arguments = tuple(t for t in hbm if t.category == "inputs")
    return KernelMemory(
        main=BlockPlan(fused=Fused(), units=units),
        hbm=_peak(hbm, count),
        arguments=arguments,
        edges=tuple(n * step for n in range(count + 1)),
        psum_usage=tuple(usage["psum"]),
    )


def _usage(schedule: KernelSchedule, memory: str) -> list[int]:
    total = schedule.total_seconds
    partitions = schedule.core.spec.partitions
    changes: list[tuple[float, int]] = []
    for storage, first, last, _ in schedule.found.lives:
        if storage.memory == memory:
            size = partitions * row_bytes(storage)
            end = max(schedule.starts[first], schedule.ends[last])
            changes += [(schedule.starts[first], size), (end, -size)]
    changes.sort()
    found, now, place = [0] * _STRETCHES, 0, 0
    for when, change in changes:
        at = min(_STRETCHES - 1, int(when / total * _STRETCHES)) if total else 0
        found[place + 1 : at + 1] = [now] * (at - place)
        place, now = at, now + change
        found[at] = max(found[at], now)
    found[place + 1 :] = [now] * (_STRETCHES - place - 1)
    return found


def _hbm(program: KernelProgram) -> list[Tensor]:
    arguments = set(map(id, program.arguments))
    results = {id(access.storage) for access in program.results}
    found = []
    for s in program.storages:
        if s.on_chip:
            continue
        category: Category = "workspace"
        if id(s) in arguments:
            category = "inputs"
        elif id(s) in results:
            category = "outputs"
        size = s.size * numpy_dtype(s.dtype).itemsize
        type_ = "x".join([*map(str, s.shape), s.dtype])
        found.append(Tensor(s.name or s.location, size, category, type_))
    return found


def _peak(tensors: Sequence[Tensor], count: int) -> HbmPeak:
    whole = sum(t.bytes for t in tensors)
    by: dict[Category, int] = dict.fromkeys(CATEGORIES, 0)
    for t in tensors:
        by[t.category] += t.bytes
    biggest = sorted(tensors, key=lambda t: -t.bytes)[:_SHOWN]
    held: dict[Category, tuple[int, ...]] = {
        c: (by[c],) * count for c in by if c != "inputs" and by[c]
    }
    return HbmPeak(whole, by, tuple(biggest), (whole,) * count, held)
