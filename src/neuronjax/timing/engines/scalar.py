"""Cycles of ScalarE: N for N elements per lane, for every function [A2].

The engine computes a function from a table of polynomials, which has to be loaded.
`Work.table` names the table. If the previous activation used another table, the
schedule adds `TABLE_LOAD`, which was measured on trn2. Functions that every table has
need no load; their `Work.table` is "". ASSUMPTION: every other function has a table of
its own.
"""

from __future__ import annotations

from neuronjax.timing import assumptions as a
from neuronjax.timing.engines.task import LaneTask, Pace, has, longest
from neuronjax.timing.work import Core

#: Functions that every table has (ASSUMPTION).
IN_EVERY_TABLE = frozenset({"copy", "square", "abs", "sign", "relu"})
ACTIVATIONS = frozenset({"activation", "activation_reduce", "activate2"})


def pace(task: LaneTask, core: Core) -> Pace:
    """Return N cycles for N elements per lane, plus 64 each time that an activation
    reads its accumulators [V26].

    From NeuronCore-v4 on, copies and tensor_scalar take N / 2 cycles if operand and
    result are BF16 or FP16 in SBUF."""
    ends = (*task.read[:1], *task.written[:1])
    cycles = longest(ends)
    if task.name in ACTIVATIONS:
        return Pace(cycles + task.folds * a.REDUCE_IN_PASSING.value)
    least = a.MINIMUM_INTERVAL.value
    if any(s.is_dynamic for s in ends):
        least = a.DYNAMIC_COPY_MINIMUM.value
    fast = has(core, "scalar_perf_modes") and len(ends) == 2
    if fast and all(s.is_half and not s.in_psum for s in ends):
        return Pace(task.elements / 2, 2, least)
    return Pace(cycles, least=least)
