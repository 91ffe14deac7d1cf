"""The schedule of a traced kernel (`KernelProgram`), by simulation of discrete events.

Each program of a grid has its own core if there are enough cores. A core has five
engines, queues that issue DMA, and 16 DMA engines; all programs share the CC-cores,
which execute collectives. An instruction starts once its queue (`kernel_queues`) is
free and the results that it needs (`kernel_dependencies`) can be read. The DMA engines
serve transfers in the order of issue. The simulation is deterministic. Times are in
seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain, pairwise
from math import inf

from neuronjax.errors import InternalError
from neuronjax.hardware import Target
from neuronjax.ir.collection import no_collection
from neuronjax.ir.kernel import KernelProgram
from neuronjax.timing import assumptions as a
from neuronjax.timing.cost_rules import KernelPrice
from neuronjax.timing.engines.lanes import shared_ports
from neuronjax.timing.kernel_cost import Prices, on_engines, with_held_tiles
from neuronjax.timing.kernel_dependencies import KernelDependencies
from neuronjax.timing.kernel_queues import (
    ISSUERS,
    NOTHING,
    Array,
    IssueQueue,
    IssueQueues,
)
from neuronjax.timing.kernel_unroll import Stream, Trips, UnrolledLoop, unrolled
from neuronjax.timing.work import Core


@dataclass(frozen=True, slots=True, eq=False)
class KernelSchedule:
    """The start and the end of every instruction of a kernel, in seconds.

    Attributes:
        core: the physical cores on which the kernel runs, as one logical core.
        stream: the kernel's instructions, with loops unrolled.
        priced: by instruction of the stream, its price.
        starts, ends: by instruction, when it starts and ends; if it is a transfer, when
            its first byte leaves and its last byte arrives.
        waits: by instruction, the seconds for which its queue was idle before it.
        causes: by instruction, the index of the earlier instruction that decided its
            start; -1 if none did.
        loads: for each load of a table into ScalarE, (start, core, table).
        issues: for each transfer that an engine in `ISSUERS` issues, (start of the
            issue, index of the transfer).
        found: the dependencies, and the lifetimes of storages.
        total_seconds: from the start until the last result can be read, plus
            `around_seconds`.
        around_seconds: time that belongs to no instruction (`Core.joining_seconds`).
        periods: for each loop of `stream.loops`, the seconds per iteration.
    """

    program: KernelProgram
    core: Core
    stream: Stream
    priced: list[KernelPrice]
    starts: list[float]
    ends: list[float]
    waits: list[float]
    causes: list[int]
    loads: list[tuple[float, int, str]]
    issues: list[tuple[float, int]]
    found: KernelDependencies
    total_seconds: float
    around_seconds: float
    periods: list[float]
    notes: tuple[str, ...]


#: A note reports TensorE's throttle if it adds more than this share of the total time.
_NOTABLE_SHARE = 0.05

#: A function from an instruction's index and price to a hypothetical price.
Change = Callable[[int, KernelPrice], KernelPrice]


@no_collection()
def schedule_kernel(
    program: KernelProgram,
    target: Target,
    *,
    lnc: int | None = None,
    trips: Trips | None = None,
) -> KernelSchedule:
    """Return the schedule of a kernel.

    The programs of a grid run on `lnc` physical cores; None means one core per program,
    up to the number of physical cores that a logical core can have. `trips` has the
    iteration counts of device loops that specify no count, by the loop's source line,
    "file.py:12". Refuse an `lnc` that the chip does not have, and instructions whose
    time is not known."""
    core = Core.of(target, _cores(program, target, lnc))
    one = Core(core.chip, 1)
    stream = unrolled(program.body, trips)
    if program.older:
        room = one.spec.sbuf_usable_bytes_per_partition
        stream.entries = with_held_tiles(stream.entries, room)
    found = KernelDependencies(program, stream.entries, core.lnc).run(one.spec)
    prices = Prices(one, target)
    priced = on_engines(stream.entries, stream.counts, prices, older=program.older)
    run = _Scheduling(stream, priced, found, core, program.older)
    run.all()
    around = core.joining_seconds if priced else 0.0
    notes = [*stream.notes, *_throttled(run)]
    if found.short:
        notes.append(
            f"the kernel needs more {' and '.join(found.short)} than the core has: "
            "times are as if the kernel fitted"
        )
    return KernelSchedule(
        program=program,
        core=core,
        stream=stream,
        priced=priced,
        starts=run.starts,
        ends=run.ends,
        waits=run.idle,
        causes=run.causes,
        loads=run.loads,
        issues=run.issues,
        found=found,
        total_seconds=run.total + around,
        around_seconds=around,
        periods=run.periods,
        notes=tuple(notes),
    )


def _throttled(run: _Scheduling) -> list[str]:
    lost = max(state.array.throttled_seconds for state in run.states)
    if lost <= _NOTABLE_SHARE * run.total:
        return []
    return [
        f"TensorE's throttle adds {lost * 1e6:,.0f} us: TensorE runs at half its full "
        "rate after pauses, or because matmuls use at most half of the array's rows"
    ]


@no_collection()
def what_if(schedule: KernelSchedule, change: Change) -> float:
    """Return the seconds that the kernel would take with other prices. `change` gets an
    instruction's index and its price, and returns the price to use instead."""
    priced = [change(n, p) for n, p in enumerate(schedule.priced)]
    run = _Scheduling(
        schedule.stream, priced, schedule.found, schedule.core, schedule.program.older
    )
    run.all()
    return run.total + schedule.around_seconds


def _cores(program: KernelProgram, target: Target, lnc: int | None) -> int:
    programs = max((i.program for i in program.body.walk()), default=0) + 1
    if lnc is not None:
        return lnc
    return max(n for n in target.chip.lnc_options if n <= max(1, programs))


class _CoreState:
    __slots__ = ("array", "dma", "held", "last_dma", "level", "ports", "table")

    def __init__(self, engines: int, array: Array) -> None:
        self.dma = [0.0] * engines
        self.level: float | None = 0.0  # the time of all in `dma`; None if they differ
        self.last_dma = NOTHING
        self.ports: dict[str, tuple[float, int]] = {}
        self.table = ""
        self.array = array
        self.held: int | None = None  # number of the loaded stationary operand


class _Scheduling(IssueQueues):
    def __init__(
        self,
        stream: Stream,
        priced: Sequence[KernelPrice],
        found: KernelDependencies,
        core: Core,
        older: bool,
    ) -> None:
        super().__init__(stream, priced, core.lnc, older)
        self.stream, self.priced, self.core = stream, priced, core
        self.order, self.stationary = found.order, found.stationary
        count = len(priced)
        self.starts, self.ends = [0.0] * count, [0.0] * count
        self.idle, self.causes = [0.0] * count, [NOTHING] * count
        nodes = count + len(found.joined)
        self.ready, self.why = [0.0] * nodes, [NOTHING] * nodes
        self.loads: list[tuple[float, int, str]] = []
        self.issues: list[tuple[float, int]] = []
        self.periods = [0.0] * len(stream.loops)
        self.total = 0.0
        engines = core.chip.dma_engines // core.chip.cores_per_chip
        tiled = any(p.rows[1] < 4 or p.columns[1] < 4 for p in priced)
        arrays = [Array(core, tiled) for _ in range(core.lnc)]
        self.states = [_CoreState(engines, array) for array in arrays]
        self._find_successors(found, nodes)
        self.done = bytearray(count)
        self.heap: list[tuple[float, int]] = []
        self.floor = 0.0
        self.limit = count

    def _find_successors(self, found: KernelDependencies, count: int) -> None:
        self.after: dict[int, list[int]] = defaultdict(list)
        self.missing = [0] * count
        joined = ([w * 2 for w in waits] for waits in found.joined)
        for n, waits in enumerate(chain(found.waits, joined)):
            self.missing[n] = len(waits)
            for w in waits:
                self.after[w >> 1].append(n * 2 + (w & 1))

    def all(self) -> None:
        """Schedule all instructions of the stream. Every iteration of a loop that the
        stream leaves out delays the instructions after the loop by the time of one
        iteration (`_period`)."""
        loops = self.stream.loops
        order = sorted(range(len(loops)), key=lambda n: loops[n].edges[-1])
        for number in order:
            loop = loops[number]
            if loop.left_out > 0:
                self._until(loop.edges[-1])
                self.periods[number] = self._period(loop)
                self.total += loop.left_out * self.periods[number]
                self.floor = self.total
        self._until(len(self.priced))
        if not all(self.done):
            raise InternalError(f"{self.done.count(0)} instructions never start")
        for number in order:
            if loops[number].left_out <= 0:
                self.periods[number] = self._period(loops[number])

    def _period(self, loop: UnrolledLoop) -> float:
        """Return the seconds between the ends of a loop's last two iterations, or the
        length of its only iteration; 0 without iterations."""
        if len(loop.edges) < 2:
            return 0.0
        turns = [self.ends[first:last] for first, last in pairwise(loop.edges)]
        ends = [max(turn, default=0.0) for turn in turns]
        if len(ends) > 1:
            return max(0.0, ends[-1] - ends[-2])
        first, last = loop.edges[0], loop.edges[-1]
        return ends[0] - min(self.starts[first:last], default=ends[0])

    def _until(self, limit: int) -> None:
        self.limit = limit
        for number, queue in enumerate(self.queues):
            queue.free = max(queue.free, self.floor)
            if queue.base < len(queue.entries):
                queue.wake = queue.free
                heappush(self.heap, (queue.free, number))
        while self.heap:
            now, number = heappop(self.heap)
            queue = self.queues[number]
            if queue.wake != now:
                continue  # outdated: the queue's `wake` has changed
            queue.wake = inf
            self._serve(now, number, queue)

    def _serve(self, now: float, number: int, queue: IssueQueue) -> None:
        """Issue the entries of `queue` that can start at the time `now`. Then schedule
        the next visit of the queue, when its next entry can start, if this is known."""
        missing, ready, done = self.missing, self.ready, self.done
        entries, limit, count = queue.entries, self.limit, len(queue.entries)
        while True:
            if queue.free > now:
                self._sleep(queue, number, queue.free)
                return
            base = queue.base
            if base >= count or entries[base] >= limit:
                return
            n = entries[base]
            if missing[n] or ready[n] > now:
                wake = inf if missing[n] else ready[n]
                n, wake = self._other(queue, now, wake)
                if n < 0:
                    if wake < inf:
                        self._sleep(queue, number, wake)
                    return
            self._issue(n, now, number, queue)
            done[n] = 1
            while base < count and done[entries[base]]:
                base += 1
            queue.base = base

    def _other(self, queue: IssueQueue, now: float, wake: float) -> tuple[int, float]:
        """Find an entry that can start now and may be issued before the queue's first
        unissued entry. Return (entry, `now`) or, if there is none, (-1, the time at
        which to look again, at the latest `wake`)."""
        entries, blocks, order = queue.entries, self.stream.blocks, self.order
        base = queue.base
        block = blocks[entries[base]]
        for n in entries[base + 1 : base + queue.window]:
            if blocks[n] != block or n >= self.limit:
                break
            if self.done[n] or self.missing[n]:
                continue
            if n in order and not all(self.done[before] for before in order[n]):
                continue
            if self.ready[n] <= now:
                return n, now
            wake = min(wake, self.ready[n])
        return -1, wake

    def _sleep(self, queue: IssueQueue, number: int, until: float) -> None:
        if until < queue.wake:
            queue.wake = until
            heappush(self.heap, (until, number))

    def _issue(self, n: int, now: float, number: int, queue: IssueQueue) -> None:
        p = self.priced[n]
        state = self.states[self.core_of[number]]
        waits = self.ready[n] > queue.free or queue.last < 0
        self.causes[n] = self.why[n] if waits else queue.last
        self.idle[n] = max(0.0, now - queue.free)
        start = now + self.pause.get(n, 0.0)
        if p.ring:
            end = self._transfer(n, p, start, queue, state)
        elif queue.kind == "tensor":
            end = self._multiply(n, p, start, queue, state)
        else:
            end = self._engine(n, p, start, queue, state, number)
        queue.last = n
        self.ends[n] = end
        visible = end + p.work.latency_seconds
        self.total = max(self.total, visible)
        self._notify(n, self.after.get(n, ()), now, end, visible)

    def _notify(
        self, n: int, after: Sequence[int], now: float, end: float, visible: float
    ) -> None:
        ready, missing, why = self.ready, self.missing, self.why
        for code in after:
            later = code >> 1
            when = end if code & 1 else visible
            if when > ready[later]:
                ready[later] = when
                why[later] = n
            missing[later] -= 1
            if not missing[later]:
                if later >= len(self.done):  # `later` is a group of entries
                    when, others = ready[later], self.after.get(later, ())
                    self._notify(why[later], others, now, when, when)
                    continue
                number = self.queue_of[later]
                queue = self.queues[number]
                self._sleep(queue, number, max(ready[later], queue.free, now))

    def _engine(
        self,
        n: int,
        p: KernelPrice,
        start: float,
        queue: IssueQueue,
        state: _CoreState,
        number: int,
    ) -> float:
        table = p.work.table
        if table and table != state.table:
            state.table = table
            load = queue.free  # a table load waits for no operand
            self.loads.append((load, self.core_of[number], table))
            start = max(start, load + a.TABLE_LOAD.value)
        ports = shared_ports(p.work, self.core)
        for port in ports:
            until, other = state.ports.get(port, (0.0, NOTHING))
            if until > start:
                start, self.causes[n] = until, other
        end = start + p.work.seconds
        for port in ports:
            state.ports[port] = (end, n)
        self.starts[n] = start
        queue.free = end
        return end

    def _multiply(
        self, n: int, p: KernelPrice, start: float, queue: IssueQueue, state: _CoreState
    ) -> float:
        held = self.stationary.get(n)
        is_there = held is not None and held == state.held
        begin = None if is_there else max(self.ready[n], self.floor)
        self.starts[n], end, queue.free = state.array.multiply(p, start, begin)
        state.held = held
        return end

    def _transfer(
        self, n: int, p: KernelPrice, start: float, queue: IssueQueue, state: _CoreState
    ) -> float:
        queue.free = start + p.issue_seconds
        if queue.kind in ISSUERS:
            self.issues.append((start, n))
        first = start + p.start_seconds
        low, count = p.dma_engines
        dma = state.dma
        waited = first
        if count == len(dma) and state.level is not None:
            begin = max(first, state.level)
            state.level = end = begin + p.work.seconds
            waited = begin
        else:
            if state.level is not None:
                dma[:] = [state.level] * len(dma)
                state.level = None
            begin, end = inf, 0.0
            for e in range(low, low + count):
                own = max(first, dma[e])
                waited = max(waited, own)
                begin = min(begin, own)
                dma[e] = own + p.work.seconds
                end = max(end, dma[e])
            if count == len(dma) and begin == waited:
                state.level = end
        if waited > first and state.last_dma >= 0:
            self.causes[n] = state.last_dma
        state.last_dma = n
        self.starts[n] = begin
        return end
