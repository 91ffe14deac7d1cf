"""The events of a schedule, and the times at which queues become free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from neuronjax.ir.instruction import Instruction
from neuronjax.timing.fused import FusedStep
from neuronjax.timing.pricing import PricedMove, PricedUnit
from neuronjax.timing.timeline import TABLE_LOAD, LoopSpan
from neuronjax.timing.work import Event, Queue, Work


class EventRecorder:
    """A collector of a schedule's events, in the order of issue.

    Attributes:
        on: whether events are recorded.
        count: how often the loops around an instruction execute it; new events get
            this count.
        instructions: the instructions to which events belong, one per step.
        fused: for each of `instructions`, all the instructions that its step fuses.
    """

    def __init__(self) -> None:
        self.on = True
        self.count = 1
        self.events: list[Event] = []
        self.instructions: list[Instruction] = []
        self.fused: list[tuple[Instruction, ...]] = []
        self.loops: list[LoopSpan] = []
        self._numbers: dict[FusedStep, int] = {}

    def work(
        self,
        step: FusedStep,
        work: Work,
        start: float,
        end: float,
        pieces: int,
        wait: float,
    ) -> None:
        if not self.on:
            return
        number = self._number(step)
        wait, busy = max(0.0, wait), work.seconds
        queue, name, count = work.queue, work.opcode, self.count
        self.events.append(
            Event(queue, start, end, name, work, number, count, wait, pieces, busy)
        )

    def move(
        self,
        prices: PricedUnit,
        move: PricedMove,
        start: float,
        end: float,
        pieces: int,
    ) -> None:
        """Record a transfer as an event. A read belongs to the first step that reads
        the value, a write to the step that computes the value."""
        if not self.on:
            return
        transfer, reader, number = move.movement.transfer, move.first_reader, -1
        if 0 <= reader < len(prices.steps):
            number = self._number(prices.steps[reader].step)
        name, count, busy = transfer.reason, self.count, move.seconds
        self.events.append(
            Event("dma", start, end, name, transfer, number, count, 0.0, pieces, busy)
        )

    def once(self, first: int, last: int) -> None:
        """Count the table loads of a loop once per run of the loop, not per iteration,
        since later iterations need none. The loop's events are those from `first` up
        to, but not including, `last`."""
        for n in range(first, last):
            if self.events[n].name == TABLE_LOAD:
                self.events[n] = self.events[n]._replace(count=self.count)

    def repeat(
        self,
        first: int,
        last: int,
        blocks: int,
        period: float,
        sources: Mapping[int, Work],
    ) -> None:
        """Change the events of one row block into events of all `blocks` row blocks,
        one of which starts every `period` seconds. Table loads occur only once.

        The events are those from `first` up to, but not including, `last`. `sources`
        has, by `id` of an event's `Work`, the `Work` for all row blocks together."""
        later = (blocks - 1) * period
        for n in range(first, last):
            event = self.events[n]
            if event.name != TABLE_LOAD:
                self.events[n] = event._replace(
                    end_seconds=event.end_seconds + later,
                    source=sources.get(id(event.source), event.source),
                    pieces=blocks,
                    queue_seconds=event.queue_seconds * blocks,
                )

    def loop(
        self,
        source: str,
        end: float,
        trips: int,
        period: float,
        events: tuple[int, int],
        *,
        is_assumed: bool,
    ) -> None:
        """Record a loop. `events` is (first, last): the events of the loop's first
        iteration are those from first up to, but not including, last."""
        if not self.on:
            return
        found = self.events[slice(*events)]
        starts = (e.start_seconds for e in found if e.name != TABLE_LOAD)
        self.loops.append(
            LoopSpan(
                start_seconds=min(starts, default=end),
                end_seconds=end,
                trips=trips,
                period_seconds=period,
                first_event=events[0],
                last_event=events[1],
                count=self.count,
                source=source,
                is_assumed=is_assumed,
            )
        )

    def _number(self, step: FusedStep) -> int:
        if step in self._numbers:
            return self._numbers[step]
        number = self._numbers[step] = len(self.instructions)
        kind = type(step.instruction)
        lead = next((m for m in step.members if type(m) is kind), step.members[0])
        self.instructions.append(lead)
        self.fused.append(tuple(step.members))
        return number


@dataclass(slots=True)
class QueueState:
    """The times at which queues become free, in seconds.

    Attributes:
        free: the time at which each queue other than DMA becomes free.
        table: the function table that ScalarE has loaded.
        dma: the time at which the DMA engines become free.
        end: the latest end of an event so far.
    """

    free: dict[Queue, float] = field(default_factory=dict)
    dma: float = 0.0
    end: float = 0.0
    table: str = ""

    def copy(self) -> QueueState:
        return QueueState(dict(self.free), self.dma, self.end, self.table)

    def shift(self, seconds: float) -> None:
        self.free = {queue: t + seconds for queue, t in self.free.items()}
        self.dma += seconds
        self.end += seconds
