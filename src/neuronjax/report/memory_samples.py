"""The use of SBUF and HBM over time, from a timeline and a memory plan.

The plan has units, the timeline has events: each unit is shown until its last event. A
call or an Spmd is shown as the units inside it, since a whole jitted step may be one
call; a loop is one unit. Times are in seconds, bytes are those of one logical core.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from neuronjax.ir.collective_set import Spmd
from neuronjax.ir.instruction import Instruction
from neuronjax.ir.instruction_set import Call
from neuronjax.report.event_spans import outermost
from neuronjax.timing.hbm import nested_peak_of
from neuronjax.timing.kernel_timeline import KernelMemory
from neuronjax.timing.memory_plan import BlockPlan, Category, HbmPeak, MemoryPlan, Unit
from neuronjax.timing.timeline import Timeline


class MemoryStage(NamedTuple):
    """A unit of the plan, and the bytes in HBM while it runs, without the arguments."""

    unit: Unit
    held: Mapping[Category, int]


def stages(memory: MemoryPlan) -> list[MemoryStage]:
    """Return the units in order, with called functions expanded."""
    return list(_stages(memory.main, memory.hbm, Counter()))


def _stages(
    plan: BlockPlan, hbm: HbmPeak, around: Mapping[Category, int]
) -> Iterator[MemoryStage]:
    for place, unit in enumerate(plan.units):
        own: dict[Category, int] = {
            name: layer[place] for name, layer in hbm.temporaries.items()
        }
        held = Counter(around) + Counter(own)
        has_inner = bool(unit.inner) and bool(unit.inner[0].units)
        if has_inner and isinstance(unit.region.steps[0].instruction, Call | Spmd):
            inner = nested_peak_of(unit.inner[0])
            held["workspace"] -= inner.bytes  # the inner units replace the call's peak
            yield from _stages(unit.inner[0], inner, held)
        else:
            yield MemoryStage(unit, held)


def stage_edges(
    timeline: Timeline, memory: MemoryPlan, shown: Sequence[MemoryStage]
) -> np.ndarray:
    """Return the times between which each stage is shown [s].

    A stage ends with its last event, over all iterations of loops, but not before the
    previous stage ends; the next stage begins at this time. If an instruction is in
    several stages (calls of one function), its events are divided among these stages.
    """
    if isinstance(memory, KernelMemory):
        return np.array(memory.edges)
    places: Mapping[int, list[int]] = defaultdict(list)
    for place, stage in enumerate(shown):
        for member in _instructions(stage.unit):
            places[id(member)].append(place)
    ends = np.zeros(len(shown))
    times = Counter(event.instruction for event in timeline.events)
    seen: Counter[int] = Counter()
    for event, loop in zip(timeline.events, outermost(timeline), strict=True):
        n = event.instruction
        own = places[id(timeline.instructions[n])] if n >= 0 else []
        if own:
            place = own[seen[n] * len(own) // times[n]]
            seen[n] += 1
            end = event.end_seconds if loop is None else loop.end_seconds
            ends[place] = max(ends[place], end)
    ends[-1:] = timeline.total_seconds
    return np.concatenate([[0.0], np.maximum.accumulate(ends)])


def _instructions(unit: Unit) -> Iterator[Instruction]:
    for step in unit.region.steps:
        yield from (step.instruction, *step.members)
    for plan in unit.inner:
        for inner in plan.units:
            yield from _instructions(inner)


def sbuf_of(unit: Unit) -> int:
    """Return the bytes of SBUF while a unit runs; for control flow, the peak."""
    inner = (sbuf_of(each) for plan in unit.inner for each in plan.units)
    return max([unit.sbuf_bytes, *inner])


def memory_samples(
    timeline: Timeline, memory: MemoryPlan
) -> dict[str, list[tuple[float, float]]]:
    """Return "SBUF", "HBM" or "PSUM" -> samples (time, bytes from that time on)."""
    shown = stages(memory)
    starts = stage_edges(timeline, memory, shown)[:-1].tolist()
    fixed = sum(tensor.bytes for tensor in memory.arguments)
    used = {
        "SBUF": [float(sbuf_of(stage.unit)) for stage in shown],
        "HBM": [float(fixed + sum(stage.held.values())) for stage in shown],
    }
    if isinstance(memory, KernelMemory):
        used["PSUM"] = [float(held) for held in memory.psum_usage]
    return {name: list(zip(starts, held, strict=True)) for name, held in used.items()}
