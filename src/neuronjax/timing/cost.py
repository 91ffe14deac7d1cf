"""The ways (`Way`) to execute an instruction, from shapes and dtypes alone.

Rules, in one file per engine, list the ways; `cost_rules` distributes tensors over the
lanes. `engines` has the times of engines, from the vendor's guides, and `assumptions`
the figures that are not facts of a chip. `schedule` prices control flow, and
`cost_collective` prices collectives.
"""

from __future__ import annotations

from math import inf

from neuronjax.ir.instruction import Instruction
from neuronjax.timing import (  # importing the rules registers them
    cost_dma as cost_dma,
    cost_gpsimd as cost_gpsimd,
    cost_kernel_call as cost_kernel_call,
    cost_reduce as cost_reduce,
    cost_scalar as cost_scalar,
    cost_tensor as cost_tensor,
    cost_vector as cost_vector,
)
from neuronjax.timing.cost_rules import PLAIN, Reading, rule
from neuronjax.timing.work import Core, Way


def own_seconds(way: Way) -> float:
    """Return the seconds in which an idle core executes `way` if operands are ready.

    Each `Work` of `way` passes its tiles to the next `Work`. The seconds are therefore
    those of the longest `Work`, plus one tile of every other `Work`, plus all
    latencies."""
    if not way:
        return 0.0
    longest = max(way, key=lambda work: work.seconds)
    firsts = sum(work.seconds / work.tiles for work in way)
    through = longest.seconds + firsts - longest.seconds / longest.tiles
    return through + sum(work.latency_seconds for work in way)


def ways(
    instruction: Instruction, core: Core, reading: Reading = PLAIN
) -> tuple[Way, ...]:
    """Return the ways to execute an instruction on the engines of `core`, the quickest
    first. An instruction that takes no time has one empty `Way`: `((),)`."""
    found = rule(instruction, core, reading)
    if core.chip.lacks:
        found = tuple(way for way in found if own_seconds(way) < inf)
    return found if len(found) == 1 else tuple(sorted(found, key=own_seconds))
