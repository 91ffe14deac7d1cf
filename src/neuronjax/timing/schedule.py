"""The schedule of a program on one logical NeuronCore, by engine.

Regions (steps that run tile by tile) follow each other in program order; each engine
and the DMA rings work in the order of issue. Inside a region, tiles start at equal
intervals, in which the busiest queue does its work for one tile. A region takes the
time of its first tile through all steps, plus one interval for each later tile. In a
region of one tile, a step starts when the first part of its operands is ready, and
processes the last part after the steps that compute its operands have ended. Loads are
issued before the engines need them. Iterations of a loop start at equal intervals. A
branch takes the time of its longest block. An Spmd block takes the time of one device,
since all devices run the same program.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from math import ceil, inf

from neuronjax.hardware import Target
from neuronjax.ir.collection import no_collection
from neuronjax.ir.collective_set import Collective
from neuronjax.ir.instruction import Instruction, InstructionProgram
from neuronjax.ir.instruction_set import Branch, Loop
from neuronjax.timing import assumptions as a
from neuronjax.timing.assumptions import CHUNK_BYTES, LOOP_TURN
from neuronjax.timing.cost_collective import collective_seconds
from neuronjax.timing.engines.throttle import after_idle_seconds, is_idle
from neuronjax.timing.memory import plan_memory
from neuronjax.timing.memory_plan import BlockPlan, MemoryPlan, Unit
from neuronjax.timing.pricing import PricedUnit, Pricing
from neuronjax.timing.recording import EventRecorder, QueueState
from neuronjax.timing.timeline import TABLE_LOAD, Timeline
from neuronjax.timing.trips import all_writers, static_trips
from neuronjax.timing.work import Core, Queue, Work

_COMPUTE: tuple[Queue, ...] = ("tensor", "vector", "scalar", "gpsimd", "sync", "host")


@no_collection()
def schedule(
    program: InstructionProgram,
    core: Core,
    target: Target,
    *,
    trips: Mapping[str | int, int] | None = None,
    plan: MemoryPlan | None = None,
    placement: Sequence[int] = (),
) -> Timeline:
    """Return the timeline of a program.

    `trips` has iteration counts of loops, by the user's line, such as "file.py:12", or
    by the loop instruction's ordinal. A loop whose count is neither static nor in
    `trips` counts as one iteration, which a note in `Timeline.notes` says. `plan` is
    the memory plan; None means that it is computed here. `placement` is
    `Policy.placement`. Refuse a collective with a device that is not in `placement`."""
    plan = plan or plan_memory(program, core)
    return _Schedule(program, core, target, dict(trips or {}), plan, placement).run()


#: By value, the seconds at which its first tile and its last tile are ready.
_Times = dict[int, tuple[float, float]]


class _Schedule:
    def __init__(
        self,
        program: InstructionProgram,
        core: Core,
        target: Target,
        trips: dict[str | int, int],
        plan: MemoryPlan,
        placement: Sequence[int],
    ) -> None:
        self.program, self.core, self.target = program, core, target
        self.placement = placement
        self.trips, self.plan = trips, plan
        self.pricing = Pricing(core)
        self.recorder = EventRecorder()
        self.notes: dict[str, None] = {}
        self.table_loads = 0

    def run(self) -> Timeline:
        state = QueueState()
        main, recorder = self.plan.main, self.recorder
        self._block(main, state, [(0.0, 0.0)] * len(main.fused.arguments))
        around = self.core.around_seconds if recorder.events else 0.0
        return Timeline(
            events=tuple(recorder.events),
            instructions=tuple(recorder.instructions),
            fused=tuple(recorder.fused),
            total_seconds=max(state.end, state.dma) + around,
            around_seconds=around,
            loops=tuple(recorder.loops),
            notes=(*self.plan.notes, *self.notes),
            memory=self.plan,
        )

    @cached_property
    def written(self) -> Mapping[int, Instruction]:
        """Return, by buffer number, the instruction that writes the buffer."""
        return all_writers(self.program)

    # -- blocks ------------------------------------------------------------------------

    def _block(
        self, plan: BlockPlan, state: QueueState, arguments: list[tuple[float, float]]
    ) -> list[tuple[float, float]]:
        fused = plan.fused
        times: _Times = dict(zip(fused.arguments, arguments, strict=True))
        for unit in plan.units:
            if unit.region.form == "control":
                self._control(plan, unit, state, times)
            elif unit.region.form == "collective":
                self._collective(plan, unit, state, times)
            else:
                self._region(plan, unit, state, times)
        return [self._ready(fused.access[v].roots, times) for v in fused.results]

    def _ready(self, roots: tuple[int, ...], times: _Times) -> tuple[float, float]:
        found = [times[r] for r in roots if r in times]
        if not found:
            return (0.0, 0.0)
        return max(f for f, _ in found), max(e for _, e in found)

    # -- regions -----------------------------------------------------------------------

    def _region(
        self, plan: BlockPlan, unit: Unit, state: QueueState, times: _Times
    ) -> None:
        prices = self.pricing.unit(plan, unit)
        if prices.block is not None:
            self._blocks(prices.block, state, times)
        else:
            self._steps(prices, state, times)

    def _steps(self, prices: PricedUnit, state: QueueState, times: _Times) -> None:
        arrived = self._load(prices, state, times)
        self._tables(prices, state)
        run = self._tiled if prices.pieces > 1 else self._streamed
        run(prices, state, times, arrived)
        self._store(prices, state, times)

    def _blocks(self, block: PricedUnit, state: QueueState, times: _Times) -> None:
        """Schedule all row blocks of a region.

        The first block is scheduled with events. A second block is scheduled without
        events, to find the time by which each later block follows the previous one."""
        records, first = self.recorder.on, len(self.recorder.events)
        one = self._one_block(block, state, times)
        last = len(self.recorder.events)
        self.recorder.on = False
        period = self._one_block(block, state, times) - one
        self.recorder.on = records
        later = (block.blocks - 2) * period
        state.shift(later)
        for step in block.steps:
            for value in step.step.results:
                _, end = times[value]
                times[value] = (end - (block.blocks - 1) * period, end + later)
        self.recorder.repeat(first, last, block.blocks, period, block.sources)

    def _one_block(self, block: PricedUnit, state: QueueState, times: _Times) -> float:
        """Schedule one row block, and return the time at which it ends, in seconds. The
        next block, which uses the same part of SBUF, is loaded after this time."""
        self._steps(block, state, times)
        state.dma = max(state.dma, state.end)
        return state.dma

    def _tables(self, prices: PricedUnit, state: QueueState) -> None:
        """Schedule the loads of the function tables that a region's activations need
        and ScalarE does not have yet. Each table is loaded once, before the region's
        steps, as if one function were computed for all tiles, then the next function
        (ASSUMPTION)."""
        tables = prices.tables
        if not tables or tables == (state.table,):
            return
        waits = sum(table != state.table for table in tables)
        seconds = waits * a.TABLE_LOAD.value
        work = Work(queue="scalar", seconds=seconds, opcode=TABLE_LOAD)
        start = state.free.get("scalar", 0.0)
        scalar = next(p for p in prices.steps if any(w.table for w in p.way))
        self.recorder.work(scalar.step, work, start, start + seconds, waits, 0.0)
        state.free["scalar"] = start + seconds
        state.end = max(state.end, start + seconds)
        state.table = tables[-1]
        self.table_loads += 1

    def _load(self, prices: PricedUnit, state: QueueState, times: _Times) -> _Times:
        """Schedule the loads of a region. Return, by value (the number of a tensor),
        the times at which its first part and its last part are ready.

        Values that the first tile needs completely are loaded first, in the order of
        the steps that read them. Then the values of which each tile needs only a part
        are loaded together."""
        arrived: _Times = {}
        for streams, moves in prices.load_groups():
            start, total = state.dma, 0.0
            for move in moves:
                _, made = times.get(move.movement.value, (0.0, 0.0))
                start = max(start, made)
                total += move.seconds
            end = start + total
            span = end
            if streams:
                first = start + total / prices.pieces
                span = max(end, first + prices.interval * (prices.pieces - 1))
            else:
                size = sum(m.movement.transfer.bytes for m in moves) / prices.blocks
                first = start + total / max(1, ceil(size / CHUNK_BYTES.value))
            for move in moves:
                ready = first + move.latency, span + move.latency
                arrived[move.movement.value] = ready
                pieces = prices.pieces if streams else 1
                self.recorder.move(prices, move, start, span, pieces)
            state.dma = end
            state.end = max(state.end, end)
        return arrived

    def _tiled(
        self, prices: PricedUnit, state: QueueState, times: _Times, arrived: _Times
    ) -> None:
        """Schedule a region of several tiles: the first tile through all steps, and the
        later tiles, which follow it at equal intervals."""
        pieces, interval = prices.pieces, prices.interval
        others = (pieces - 1) * interval
        inside: dict[int, float] = {}
        free, note = state.free, self.recorder.work
        taken: dict[Queue, float] = {}
        whole = {m.movement.value for m in prices.loads if m.movement.is_whole}
        streams = {m.movement.value for m in prices.loads} - whole
        for p in prices.steps:
            ready = last = 0.0
            for value in p.reads:
                if value in inside:
                    first = inside[value]
                elif value in streams:
                    first, end = arrived[value]
                    first = max(first, end - others)
                elif value in arrived:  # whole: the first tile may overlap the load
                    first, end = arrived[value]
                    last = max(last, end)
                else:  # computed by an earlier region: wait for its last tile
                    first = times[value][1] if value in times else 0.0
                if first > ready:
                    ready = first
            at, step = ready, p.step
            for work in p.way:
                queue = work.queue
                d = work.seconds / pieces
                before = free.get(queue, 0.0)
                start = max(at, before, taken.get(queue, 0.0), last - d)
                if queue == "tensor" and queue not in taken:
                    d += self._ramp(state, start, d)
                taken[queue] = start + d
                note(step, work, start, start + others + d, pieces, start - before)
                at = start + d + work.latency_seconds
            at = max(at, last)
            end = at + others
            for value in step.results:
                inside[value] = at
                times[value] = (end if value in step.sums else at, end)
            if end > state.end:
                state.end = end
        for queue, t in taken.items():
            free[queue] = t + others

    def _streamed(
        self, prices: PricedUnit, state: QueueState, times: _Times, arrived: _Times
    ) -> None:
        """Schedule the steps of a region of one tile. Each step starts when the first
        part of each of its operands is ready."""
        free, note = state.free, self.recorder.work
        for p in prices.steps:
            first = end = 0.0
            for value in p.reads:
                found = arrived.get(value) or times.get(value)
                if found is not None:
                    first, end = max(first, found[0]), max(end, found[1])
            taken: dict[Queue, float] = {}  # several `Work`s may use one queue
            for work in p.way:
                before = taken.get(work.queue, free.get(work.queue, 0.0))
                start = max(first, before)
                part = work.seconds / work.tiles
                done = max(start + work.seconds, end + part)
                if work.queue == "tensor":
                    done += self._ramp(state, start, work.seconds)
                note(p.step, work, start, done, work.tiles, start - before)
                taken[work.queue] = start + work.seconds
                free[work.queue] = done
                first = start + part + work.latency_seconds
                end = done + work.latency_seconds
            if p.is_barrier:
                first = end
            for value in p.step.results:
                times[value] = (first, end)
            state.end = max(state.end, end)

    def _ramp(self, state: QueueState, start: float, busy: float) -> float:
        """Return the seconds that TensorE's throttle adds to work that starts at
        `start` and takes `busy` seconds at the full rate; 0 if TensorE did not pause
        before the work."""
        if not is_idle(start - state.free.get("tensor", -inf)):
            return 0.0
        return after_idle_seconds(self.core, busy)

    def _store(self, prices: PricedUnit, state: QueueState, times: _Times) -> None:
        for move in prices.stores:
            first, end = times.get(move.movement.value, (0.0, 0.0))
            if prices.pieces > 1:
                part = move.seconds / prices.pieces
            else:
                size = move.movement.transfer.bytes / prices.blocks
                part = move.seconds / max(1, ceil(size / CHUNK_BYTES.value))
            start = max(first, state.dma)
            done = max(start + move.seconds, end + part)
            self.recorder.move(prices, move, start, done, prices.pieces)
            state.dma = max(state.dma, first) + move.seconds
            state.end = max(state.end, done + move.latency)
            if move.first_reader < 0:
                times[move.movement.value] = (start, done + move.latency)

    # -- control flow ------------------------------------------------------------------

    def _control(
        self, plan: BlockPlan, unit: Unit, state: QueueState, times: _Times
    ) -> None:
        step = unit.region.steps[0]
        i = step.instruction
        self._region_moves(unit, state, times)
        access = plan.fused.access
        given = [self._ready(access[v].roots, times) for v in step.operands]
        arguments = given[: len(i.operands)]
        for _, end in given[len(i.operands) :]:  # outer values that blocks of `i` read
            for queue in _COMPUTE:
                state.free[queue] = max(state.free.get(queue, 0.0), end)
        if isinstance(i, Loop):
            results = self._loop(i, unit, state, arguments)
        elif isinstance(i, Branch):
            results = self._branch(i, unit, state)
        else:
            results = self._block(unit.inner[0], state, arguments)
        for value, time in zip(step.results, results, strict=True):
            times[value] = time
        self._write(unit, step.results, state, times)

    def _region_moves(self, unit: Unit, state: QueueState, times: _Times) -> None:
        self._write(unit, times, state, times)
        times.update(self._load(self.pricing.moves(unit), state, times))

    def _write(
        self, unit: Unit, values: Collection[int], state: QueueState, times: _Times
    ) -> None:
        """Schedule the stores of those of `values` that `unit` writes to HBM."""
        prices = self.pricing.moves(unit)
        for move in prices.stores:
            value = move.movement.value
            if value in values:
                start = max(state.dma, times[value][1])
                state.dma = start + move.seconds
                self.recorder.move(prices, move, start, state.dma, 1)
                done = state.dma + move.latency
                times[value] = (done, done)
                state.end = max(state.end, done)

    def _loop(
        self,
        i: Loop,
        unit: Unit,
        state: QueueState,
        arguments: list[tuple[float, float]],
    ) -> list[tuple[float, float]]:
        """Schedule a loop, and return the times at which the first and the last tile of
        each result are ready.

        The first iteration is scheduled with events. A second iteration is scheduled
        without events, to find the time from each later iteration to the next."""
        (body,) = unit.inner
        turns, assumed = self._turns(i)
        if turns == 0:
            return arguments
        first = len(self.recorder.events)
        self.recorder.count *= turns
        results = self._block(body, state, arguments)
        self.recorder.count //= turns
        last = len(self.recorder.events)
        one, period = _reach(state, results), 0.0
        if turns > 1:
            on, self.recorder.on = self.recorder.on, False
            loads = self.table_loads
            results = self._block(body, state, results)
            self.recorder.on = on
            if loads == self.table_loads:
                self.recorder.once(first, last)
            period = max(0.0, _reach(state, results) - one) + LOOP_TURN.value
            later = (turns - 2) * period + LOOP_TURN.value
            state.shift(later)
            results = [(f + later, e + later) for f, e in results]
        self.recorder.loop(
            i.location.source,
            state.end,
            turns,
            period,
            (first, last),
            is_assumed=assumed,
        )
        return results

    def _turns(self, i: Loop) -> tuple[int, bool]:
        source = i.location.source
        for key in (source, source.rpartition("/")[2], i.ordinal):
            if key in self.trips:
                return max(0, self.trips[key]), False
        found = static_trips(i, self.written, self.program.functions)
        if found is not None:
            return found, False
        why = "the number of iterations depends on data"
        self.notes[f"loop at {source or '?'}: 1 iteration assumed, since {why}"] = None
        return 1, True

    def _branch(
        self, i: Branch, unit: Unit, state: QueueState
    ) -> list[tuple[float, float]]:
        on, self.recorder.on = self.recorder.on, False
        ends = []
        for inner in unit.inner:
            copy = state.copy()
            self._block(inner, copy, [])
            ends.append(max(copy.end, copy.dma))
        self.recorder.on = on
        worst = max(range(len(ends)), key=ends.__getitem__)
        which = f"block {worst} of {len(ends)} (counted from 0)"
        text = f"{which} is assumed to run, since it is the slowest"
        self.notes[f"branch at {i.location.source or '?'}: {text}"] = None
        return self._block(unit.inner[worst], state, [])

    def _collective(
        self, plan: BlockPlan, unit: Unit, state: QueueState, times: _Times
    ) -> None:
        """Schedule a collective on the CC-cores. Only the steps that read its results
        wait for it."""
        (step,) = unit.region.steps
        i = step.instruction
        assert isinstance(i, Collective)
        self._region_moves(unit, state, times)
        access = plan.fused.access
        ready = [self._ready(access[v].roots, times)[1] for v in step.operands]
        start = max([state.free.get("cc", 0.0), *ready])
        seconds = collective_seconds(i, self.core, self.target, self.placement)
        end = start + seconds
        if seconds:
            work = Work(queue="cc", seconds=seconds, opcode=i.name.upper())
            wait = start - state.free.get("cc", 0.0)
            self.recorder.work(step, work, start, end, 1, wait)
            state.free["cc"] = end
        for value in step.results:
            times[value] = (end, end)
        state.end = max(state.end, end)


def _reach(state: QueueState, results: list[tuple[float, float]]) -> float:
    return max([state.end, state.dma, *(e for _, e in results)])
