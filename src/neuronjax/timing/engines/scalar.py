"""ScalarE: N elements per lane in N cycles whatever the function, scale and bias [A2].

Each function needs its table of polynomials in the engine: `Work.table` names it, and
who schedules adds `TABLE_LOAD`, which was measured on trn2, where it is not the table
of the activation before. What every table holds ("") needs none. That tables hold one
function each is an assumption.
"""

from __future__ import annotations

from neuronjax.timing import assumptions as a
from neuronjax.timing.engines.task import LaneTask, Pace, has, longest
from neuronjax.timing.work import Core

#: Functions that every table holds (ASSUMPTION; `copy` must be one of them).
IN_EVERY_TABLE = frozenset({"copy", "square", "abs", "sign", "relu"})
ACTIVATIONS = frozenset({"activation", "activation_reduce", "activate2"})


def table_of(function: str) -> str:
    """The table that a function needs; "" for any."""
    return "" if function in IN_EVERY_TABLE else function


def pace(task: LaneTask, core: Core) -> Pace:
    """N, and 64 to read accumulators [V26]; copies and tensor_scalar in 16 bits of SBUF
    N / 2 from NeuronCore-v4 on."""
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
