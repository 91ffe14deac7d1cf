"""Events as they are scheduled, and the instructions that they belong to."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from neuronjax.ir.instruction import Instruction
from neuronjax.timing.fusion import Step
from neuronjax.timing.pricing import PricedMove, PricedUnit
from neuronjax.timing.timeline import LoopSpan
from neuronjax.timing.work import Event, Work

#: Opcode of ScalarE's loads of tables, which run ahead of what needs them.
TABLE_LOAD = "ACT_TABLE_LOAD"


class Recorder:
    """Collects events; while it is off, nothing.

    Attributes:
        on: whether it collects.
        count: how often what is scheduled now happens: trips of the loops around it.
        events: so far.
        instructions: what they belong to.
        fused: for each of these all that its step stands for.
        loops: so far.
    """

    def __init__(self) -> None:
        self.on = True
        self.count = 1
        self.events: list[Event] = []
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
        self.events.append(
            Event(
                queue=work.queue,
                start_seconds=start,
                end_seconds=end,
                name=work.opcode,
                source=work,
                instruction=self._number(step),
                count=self.count,
                wait_seconds=max(0.0, wait),
                pieces=pieces,
                queue_seconds=work.seconds,
            )
        )

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
        transfer = move.movement.transfer
        reader = move.first_reader
        step = prices.steps[reader].step if 0 <= reader < len(prices.steps) else None
        self.events.append(
            Event(
                queue="dma",
                start_seconds=start,
                end_seconds=end,
                name=transfer.reason,
                source=transfer,
                instruction=-1 if step is None else self._number(step),
                count=self.count,
                pieces=pieces,
                queue_seconds=move.seconds,
            )
        )

    def once(self, first: int, last: int) -> None:
        """Of a range of events the tables: the first turn's are there in the others."""
        for n in range(first, last):
            event = self.events[n]
            if event.name == TABLE_LOAD:
                self.events[n] = dataclasses.replace(event, count=self.count)

    def repeat(
        self,
        first: int,
        last: int,
        blocks: int,
        period: float,
        sources: Mapping[int, Work],
    ) -> None:
        """Of a range of events: they are one block's, the others follow."""
        for n in range(first, last):
            event = self.events[n]
            if event.name == TABLE_LOAD:
                continue
            self.events[n] = dataclasses.replace(
                event,
                end_seconds=event.end_seconds + (blocks - 1) * period,
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
        """Notes a loop whose first turn has a range of events."""
        if not self.on:
            return
        inside = [e for e in self.events[slice(*events)] if e.name != TABLE_LOAD]
        self.loops.append(
            LoopSpan(
                start_seconds=min((e.start_seconds for e in inside), default=end),
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

    def _number(self, step: Step) -> int:
        number = self._numbers.get(step)
        if number is None:
            number = self._numbers[step] = len(self.instructions)
            kind = type(step.instruction)
            lead = next((m for m in step.members if type(m) is kind), step.members[0])
            self.instructions.append(lead)
            self.fused.append(tuple(step.members))
        return number
