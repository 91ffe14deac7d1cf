"""What is in SBUF and HBM at which time, from a timeline and a memory plan.

The plan knows units of the main block, the timeline knows events: what units hold is
shown one after the other, each until its last event. Seconds, and bytes of one core.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuronjax.ir.instruction import Instruction
from neuronjax.report.event_spans import outermost
from neuronjax.timing.kernel_timeline import KernelMemory
from neuronjax.timing.memory_plan import MemoryPlan, Unit
from neuronjax.timing.timeline import Timeline


def unit_edges(timeline: Timeline, memory: MemoryPlan) -> np.ndarray:
    """Between which times each unit of the main block is shown [s].

    A unit is over with its last event, all turns of loops included, and never before
    the unit before it; the next one begins then."""
    if isinstance(memory, KernelMemory):
        return np.array(memory.edges)
    units = {
        id(member): place
        for place, unit in enumerate(memory.main.units)
        for member in _instructions(unit)
    }
    ends = np.zeros(len(memory.main.units))
    for event, loop in zip(timeline.events, outermost(timeline), strict=True):
        if event.instruction >= 0:
            place = units.get(id(timeline.instructions[event.instruction]))
            if place is not None:
                end = event.end_seconds if loop is None else loop.end_seconds
                ends[place] = max(ends[place], end)
    ends[-1:] = timeline.total_seconds
    return np.concatenate([[0.0], np.maximum.accumulate(ends)])


def _instructions(unit: Unit) -> Iterator[Instruction]:
    """What a unit executes, the blocks of control flow included."""
    for step in unit.region.steps:
        yield from (step.instruction, *step.members)
    for plan in unit.inner:
        for inner in plan.units:
            yield from _instructions(inner)


def sbuf_of(unit: Unit) -> int:
    """Bytes of SBUF while a unit runs; of control flow, at its fullest."""
    inner = (sbuf_of(each) for plan in unit.inner for each in plan.units)
    return max([unit.sbuf_bytes, *inner])


def memory_samples(
    timeline: Timeline, memory: MemoryPlan
) -> dict[str, list[tuple[float, float]]]:
    """Bytes from a time on, of SBUF and HBM."""
    starts = unit_edges(timeline, memory)[:-1].tolist()
    sbuf = [float(sbuf_of(unit)) for unit in memory.main.units]
    hbm = [float(held) for held in memory.hbm.usage[: len(starts)]]
    found = {
        "SBUF": list(zip(starts, sbuf, strict=True)),
        "HBM": list(zip(starts, hbm, strict=True)),
    }
    if isinstance(memory, KernelMemory):
        psum = [float(held) for held in memory.psum_usage]
        found["PSUM"] = list(zip(starts, psum, strict=True))
    return found
