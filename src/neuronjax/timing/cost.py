"""What an instruction costs: the legal ways to execute it, from its shapes alone.

Rules say which ways are legal, one file per engine; where tensors lie on the lanes is
`cost_rules`'s. What an engine takes is in `engines`, by the vendor's guides; figures
that are not facts of a chip are in `assumptions`.
Control flow and collectives have no cost here: `schedule` runs the former, and the
seconds of the latter are in `collectives`.
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

#: Importing them registers their rules.
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
    """What a way takes on an idle core whose operands are there.

    Its works stream their tiles to each other: the longest, and the others' first
    tiles, as in a pipeline; then the latencies.
    """
    if not way:
        return 0.0
    longest = max(way, key=lambda work: work.seconds)
    firsts = sum(work.seconds / work.tiles for work in way)
    through = longest.seconds + firsts - longest.seconds / longest.tiles
    return through + sum(work.latency_seconds for work in way)


def ways(
    instruction: Instruction, core: Core, reading: Reading = PLAIN
) -> tuple[Way, ...]:
    """Return the legal ways to execute an instruction, the quickest first.

    Ways are in the order of `own_seconds`; they are `((),)` where the instruction is
    free."""
    found = rule(instruction, core, reading)
    if core.chip.lacks:
        found = tuple(way for way in found if own_seconds(way) < inf)
    return found if len(found) == 1 else tuple(sorted(found, key=own_seconds))
