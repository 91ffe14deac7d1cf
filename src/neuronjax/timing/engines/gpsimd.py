"""Cycles of GpSimdE, eight freely programmable processors of 512 bits.

An instruction with a documented formula takes 150 cycles to start, plus the cycles of
the formula [V26]. Other instructions run as software: per cycle each of 128 lanes
executes one operation, or reads or writes 4 bytes [A2]; software reaches `GPSIMD_SHARE`
of this. ASSUMPTION: the operations are those of the plain algorithm.
"""

from __future__ import annotations

from math import ceil

from neuronjax.timing import assumptions as a
from neuronjax.timing.engines.task import LaneTask, Pace
from neuronjax.timing.engines.vector import RANDOM
from neuronjax.timing.work import Core

#: Instructions that take a cycle per element [V26].
_PLAIN = frozenset({"iota", "affine_select", "pool"}) | RANDOM
#: Instructions that no other engine has; those outside `_PLAIN` are software.
NAMES = frozenset(
    {"iota", "affine_select", "tensor_partition_reduce"}
    | {"sequence_bounds", "nonzero_with_count"}
)
#: Indices that nc_n_gather processes at a time [ISA].
_GATHER_GROUP = 512


def pace(task: LaneTask, core: Core) -> Pace:
    """Return the cycles of a task: one per element for names in `_PLAIN`; for software,
    the cycles of reading or of writing all elements, whichever takes longer."""
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
    """Return the cycles of 32-bit `operations` spread over the lanes of all physical
    cores, or of moving `moved_bytes` if that takes longer."""
    lanes = core.spec.partitions * core.lnc * a.GPSIMD_SHARE.value
    return max(operations, moved_bytes / a.GPSIMD_BYTES.value) / lanes


def gather_cycles(indices: float, elements: int, item_bytes: int) -> float:
    """Return the cycles of local_gather on one processor (see `GATHER_INDEX`)."""
    return indices * (a.GATHER_INDEX.value + elements / max(1.0, 4 / item_bytes))


def long_gather_cycles(indices: int) -> float:
    """Return the cycles of nc_n_gather: `GATHER_INDEX` per index, plus one start for
    each 512 indices after the first 512 [ISA]."""
    starts = (ceil(indices / _GATHER_GROUP) - 1) * a.GPSIMD_START.value
    return indices * a.GATHER_INDEX.value + starts


def topk_cycles(elements: int, k: int) -> float:
    """Return the cycles of topk for a row on 16 partitions: 4 * elements + k [ISA]."""
    return a.TOPK_PASSES.value * elements + k
