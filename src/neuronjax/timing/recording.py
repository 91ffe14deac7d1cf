"""Events as they are scheduled, and the instructions that they belong to.

What happens is noted as rows, the fields of an `Event` in their order: most readers of
a schedule want its end alone, and `Events` makes of rows events when they are asked
for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import overload

from neuronjax.ir.instruction import Instruction
from neuronjax.timing.fusion import Step
from neuronjax.timing.pricing import PricedMove, PricedUnit
from neuronjax.timing.timeline import LoopSpan
from neuronjax.timing.work import Event, Queue, Transfer, Work

#: Opcode of ScalarE's loads of tables, which run ahead of what needs them.
TABLE_LOAD = "ACT_TABLE_LOAD"

#: The fields of an Event, in order.
Row = tuple[Queue, float, float, str, Work | Transfer, int, int, float, int, float]


class Events(Sequence[Event]):
    """Events, made of rows when the first is asked for."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self._made: tuple[Event, ...] = ()

    def _all(self) -> tuple[Event, ...]:
        if len(self._made) < len(self._rows):
            self._made = tuple(map(_event, self._rows))
        return self._made

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Event, ...]: ...
    def __getitem__(self, index: int | slice) -> Event | tuple[Event, ...]:
        return self._all()[index]

    def __iter__(self) -> Iterator[Event]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Events | tuple) and self._all() == tuple(other)

    def __repr__(self) -> str:
        return repr(self._all())


def _event(row: Row) -> Event:
    queue, start, end, name, source, number, count, wait, pieces, busy = row
    return Event(
        queue=queue,
        start_seconds=start,
        end_seconds=end,
        name=name,
        source=source,
        instruction=number,
        count=count,
        wait_seconds=wait,
        pieces=pieces,
        queue_seconds=busy,
    )


class Recorder:
    """Collects events; while it is off, nothing.

    Attributes:
        on: whether it collects.
        count: how often what is scheduled now happens: trips of the loops around it.
        rows: so far, the fields of an event each.
        instructions: what they belong to.
        fused: for each of these all that its step stands for.
        loops: so far.
    """

    def __init__(self) -> None:
        self.on = True
        self.count = 1
        self.rows: list[Row] = []
        self.instructions: list[Instruction] = []
        self.fused: list[tuple[Instruction, ...]] = []
        self.loops: list[LoopSpan] = []
        self._numbers: dict[Step, int] = {}

    def work(
        self,
        step: Step,
        work: Work,
        start: float,
        end: float,
        pieces: int,
        wait: float,
    ) -> None:
        """Notes a work of a step."""
        if not self.on:
            return
        number = self._numbers.get(step)
        if number is None:
            number = self._add(step)
        wait = wait if wait > 0.0 else 0.0
        busy = work.seconds
        row = (work.queue, start, end, work.opcode, work, number)
        self.rows.append((*row, self.count, wait, pieces, busy))

    def move(
        self,
        prices: PricedUnit,
        move: PricedMove,
        start: float,
        end: float,
        pieces: int,
    ) -> None:
        """Notes a transfer; it belongs to the first step that needs it, or made it."""
        if not self.on:
            return
        transfer, reader, number = move.movement.transfer, move.first_reader, -1
        if 0 <= reader < len(prices.steps):
            step = prices.steps[reader].step
            found = self._numbers.get(step)
            number = self._add(step) if found is None else found
        row = ("dma", start, end, transfer.reason, transfer, number)
        self.rows.append((*row, self.count, 0.0, pieces, move.seconds))

    def once(self, first: int, last: int) -> None:
        """Of a range of events the tables: the first turn's are there in the others."""
        for n in range(first, last):
            row = self.rows[n]
            if row[3] == TABLE_LOAD:
                self.rows[n] = (*row[:6], self.count, *row[7:])

    def repeat(
        self,
        first: int,
        last: int,
        blocks: int,
        period: float,
        sources: Mapping[int, Work],
    ) -> None:
        """Of a range of events: they are one block's, the others follow."""
        later = (blocks - 1) * period
        for n in range(first, last):
            queue, start, end, name, source, number, count, wait, _, busy = self.rows[n]
            if name != TABLE_LOAD:
                source = sources.get(id(source), source)
                row = (queue, start, end + later, name, source, number)
                self.rows[n] = (*row, count, wait, blocks, busy * blocks)

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
        """Notes a loop whose first turn has a range of events."""
        if not self.on:
            return
        inside = [row for row in self.rows[slice(*events)] if row[3] != TABLE_LOAD]
        self.loops.append(
            LoopSpan(
                start_seconds=min((row[1] for row in inside), default=end),
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

    def _add(self, step: Step) -> int:
        """Takes a step in; its number."""
        number = self._numbers[step] = len(self.instructions)
        kind = type(step.instruction)
        lead = next((m for m in step.members if type(m) is kind), step.members[0])
        self.instructions.append(lead)
        self.fused.append(tuple(step.members))
        return number
