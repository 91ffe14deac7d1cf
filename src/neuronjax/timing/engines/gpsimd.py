"""Cycles of GpSimdE, eight freely programmable processors of 512 bits.

Every instruction takes 150 cycles to start [V26]; `lanes` adds these. After its start,
an instruction with a documented formula takes the cycles of the formula [V26]. Other
instructions run as software: at best, each of 128 lanes executes one operation per
cycle, or reads or writes 4 bytes [A2]. ASSUMPTION: software reaches the fraction
`GPSIMD_SHARE` of this, and executes the operations of the textbook algorithm.
"""

from __future__ import annotations

from math import ceil

from neuronjax.timing import assumptions as a
from neuronjax.timing.engines.task import LaneTask, Pace
from neuronjax.timing.engines.vector import RANDOM
from neuronjax.timing.work import Core

#: Instructions that take one cycle per element of a lane [V26].
_PLAIN = frozenset({"iota", "affine_select", "pool"}) | RANDOM
#: Instructions that no other engine has; those not in `_PLAIN` run as software.
NAMES = frozenset(
    {"iota", "affine_select", "tensor_partition_reduce"}
    | {"sequence_bounds", "nonzero_with_count"}
)
#: Indices that nc_n_gather processes at a time [ISA].
_GATHER_GROUP = 512


def pace(task: LaneTask, core: Core) -> Pace:
    """Return the cycles of a task on GpSimdE, without its start.

    Instructions in `_PLAIN` take one cycle per element of a lane. Software takes the
    time to read all operands or to write all results, whichever is longer."""
    if task.name in _PLAIN:
        return Pace(task.elements)
    moved = sum(s.dtype.itemsize for s in task.read)
    item = max(moved, *(s.dtype.itemsize for s in task.written), 1)
    least = 0.0
    if any(s.is_dynamic for s in task.streams):
        least = a.DYNAMIC_COPY_MINIMUM.value
    cycles = item / (a.GPSIMD_BYTES.value * a.GPSIMD_SHARE.value)
    return Pace(task.elements * cycles, least=least)


def operations_cycles(core: Core, operations: float, moved_bytes: float) -> float:
    """Return the cycles in which software executes this number of 32-bit `operations`
    or, if that takes longer, reads and writes `moved_bytes`. Both numbers are divided
    among the lanes of all physical cores."""
    lanes = core.spec.partitions * core.lnc * a.GPSIMD_SHARE.value
    return max(operations, moved_bytes / a.GPSIMD_BYTES.value) / lanes


def gather_cycles(indices: float, elements: int, item_bytes: int) -> float:
    """Return the cycles in which one processor runs local_gather: for each index,
    `GATHER_INDEX` plus the cycles to copy the `elements` that the index selects."""
    return indices * (a.GATHER_INDEX.value + elements / max(1.0, 4 / item_bytes))


def long_gather_cycles(indices: int) -> float:
    """Return the cycles of nc_n_gather: `GATHER_INDEX` per index, plus the cycles of
    another start for every 512 indices after the first 512 [ISA]."""
    starts = (ceil(indices / _GATHER_GROUP) - 1) * a.GPSIMD_START.value
    return indices * a.GATHER_INDEX.value + starts


def topk_cycles(elements: int, k: int) -> float:
    """Return the cycles in which one processor, with its 16 partitions, finds the `k`
    largest of a row of `elements`: 4 * elements + k [ISA]."""
    return a.TOPK_PASSES.value * elements + k
