"""GpSimdE: eight processors of 512 bits, programmed freely.

A documented instruction takes 150 cycles to start and what its formula says [V26];
software is counted in operations on vectors of 128 lanes, all partitions together, and
reads or writes 4 bytes per lane and cycle [A2]. How well software does is not
published: the counts are those of the plain algorithm.
"""

from __future__ import annotations

from math import ceil

from neuronjax.timing import assumptions as a
from neuronjax.timing.engines.task import LaneTask, Pace
from neuronjax.timing.engines.vector import RANDOM
from neuronjax.timing.work import Core

#: N cycles [V26]; pooling reads windows as they are.
_PLAIN = frozenset({"iota", "affine_select", "pool"}) | RANDOM
#: What no other engine has; the last three are software.
NAMES = frozenset(
    {"iota", "affine_select", "tensor_partition_reduce"}
    | {"sequence_bounds", "nonzero_with_count"}
)
#: Indices that a group of instructions of nc_n_gather takes [ISA].
_GATHER_GROUP = 512


def pace(task: LaneTask, core: Core) -> Pace:
    """N, or the bytes in or out of a lane at software's rate."""
    if task.name in _PLAIN:
        return Pace(task.elements)
    moved = sum(s.dtype.itemsize for s in task.read)
    item = max(moved, *(s.dtype.itemsize for s in task.written), 1)
    least = 0.0
    if any(s.is_dynamic for s in task.streams):
        least = a.DYNAMIC_COPY_MINIMUM.value
    return Pace(task.elements * software_cycles(item), least=least)


def software_cycles(item_bytes: float) -> float:
    """Cycles of software for an element whose operands are that long together."""
    return item_bytes / (a.GPSIMD_BYTES.value * a.GPSIMD_SHARE.value)


def operations_cycles(core: Core, operations: float, moved_bytes: float) -> float:
    """Scalar operations of 32 bits spread over the lanes of all physical cores, or
    what they read and write."""
    lanes = core.spec.partitions * core.lnc * a.GPSIMD_SHARE.value
    return max(operations, moved_bytes / a.GPSIMD_BYTES.value) / lanes


def gather_cycles(indices: float, elements: int, item_bytes: int) -> float:
    """local_gather, one processor: an index at a time; see `GATHER_INDEX`."""
    return indices * (a.GATHER_INDEX.value + elements / max(1.0, 4 / item_bytes))


def long_gather_cycles(indices: int) -> float:
    """nc_n_gather: a group of instructions for 512 indices [ISA]; an index as of
    local_gather."""
    starts = (ceil(indices / _GATHER_GROUP) - 1) * a.GPSIMD_START.value
    return indices * a.GATHER_INDEX.value + starts


def topk_cycles(elements: int, k: int) -> float:
    """A row on 16 partitions: 4 n + K [ISA]."""
    return a.TOPK_PASSES.value * elements + k
