"""The cost of an instruction: the ways (`work.Way`) to execute it, from shapes alone.

The rules list the ways, in one file per engine; `cost_rules` places tensors on the
lanes. The times of engines are in `engines`, from the vendor's guides; figures that are
not facts of a chip are in `assumptions`. `schedule` and `collectives` price control
flow and collectives.
"""

from __future__ import annotations

from math import inf

from neuronjax.ir.instruction import Instruction
from neuronjax.timing import (
    cost_dma,
    cost_gpsimd,
    cost_kernel_call,
    cost_reduce,
    cost_scalar,
    cost_tensor,
    cost_vector,
)
from neuronjax.timing.cost_rules import PLAIN, Reading, rule
from neuronjax.timing.work import Core, Way

#: The modules of rules; importing them registers the rules.
RULES = (
    cost_dma,
    cost_gpsimd,
    cost_kernel_call,
    cost_reduce,
    cost_scalar,
    cost_tensor,
    cost_vector,
)


def own_seconds(way: Way) -> float:
    """Return the seconds of a way on an idle core if all operands are ready.

    The works of `way` are a pipeline, so this is the time of the longest work, plus the
    first tile of every other work, plus all latencies."""
    if not way:
        return 0.0
    longest = max(way, key=lambda work: work.seconds)
    firsts = sum(work.seconds / work.tiles for work in way)
    through = longest.seconds + firsts - longest.seconds / longest.tiles
    return through + sum(work.latency_seconds for work in way)


def ways(
    instruction: Instruction, core: Core, reading: Reading = PLAIN
) -> tuple[Way, ...]:
    """Return the ways to execute an instruction, the quickest first; the result is
    `((),)` if the instruction is free."""
    found = rule(instruction, core, reading)
    if core.chip.lacks:
        found = tuple(way for way in found if own_seconds(way) < inf)
    return found if len(found) == 1 else tuple(sorted(found, key=own_seconds))
