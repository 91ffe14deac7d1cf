"""Cycles of ScalarE: N for N elements per lane, for every function [A2].

Each function needs its table of polynomials in the engine: `Work.table` names it, and
the schedule adds `TABLE_LOAD`, as measured on trn2, if the previous activation used
another table. Functions that every table has ("") need no load. ASSUMPTION: besides
these, each table has only one function.
"""

from __future__ import annotations

from neuronjax.timing import assumptions as a
from neuronjax.timing.engines.task import LaneTask, Pace, has, longest
from neuronjax.timing.work import Core

#: Functions that every table has (ASSUMPTION).
IN_EVERY_TABLE = frozenset({"copy", "square", "abs", "sign", "relu"})
ACTIVATIONS = frozenset({"activation", "activation_reduce", "activate2"})


def pace(task: LaneTask, core: Core) -> Pace:
    """Return N cycles for N elements per lane, plus 64 per read of accumulators [V26].
    From NeuronCore-v4 on, copies and tensor_scalar of 16 bits in SBUF take N / 2."""
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
