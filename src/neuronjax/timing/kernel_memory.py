"""What a kernel keeps in SBUF, PSUM and HBM over time.

A storage is alive from its first access to its last; its bytes are taken of every
partition, however many it uses. `KernelMemory` is the `MemoryPlan` of a kernel: its
units are stretches of time, of equal length, each at its fullest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from neuronjax.ir.kernel import KernelProgram, Storage
from neuronjax.timing.fused import Fused, TiledRegion
from neuronjax.timing.kernel_operands import numpy_dtype
from neuronjax.timing.kernel_schedule import KernelSchedule
from neuronjax.timing.memory_plan import (
    CATEGORIES,
    BlockPlan,
    Category,
    HbmPeak,
    MemoryPlan,
    Tensor,
    Unit,
)

_STRETCHES = 400
_SHOWN = 8


@dataclass(frozen=True, slots=True, eq=False)
class KernelMemory(MemoryPlan):
    """The memory of a kernel.

    Attributes:
        edges: seconds between which each unit of `main` is, one more than units.
        psum_usage: bytes of PSUM in each unit, all partitions.
    """

    edges: tuple[float, ...] = ()
    psum_usage: tuple[int, ...] = ()

    @property
    def psum_peak_bytes(self) -> int:
        """The most that is in PSUM at a time."""
        return max(self.psum_usage, default=0)


def kernel_memory(schedule: KernelSchedule) -> KernelMemory:
    """The memory of a scheduled kernel."""
    program = schedule.program
    hbm = _hbm(program)
    usage = {memory: _usage(schedule, memory) for memory in ("sbuf", "psum")}
    count = len(usage["sbuf"])
    step = schedule.total_seconds / count
    units = [Unit(region=TiledRegion(), sbuf_bytes=held) for held in usage["sbuf"]]
    arguments = tuple(t for t in hbm if t.category == "inputs")
    return KernelMemory(
        main=BlockPlan(fused=Fused(), units=units, in_hbm={}, from_psum=set()),
        hbm=_peak(hbm, count),
        arguments=arguments,
        edges=tuple(n * step for n in range(count + 1)),
        psum_usage=tuple(usage["psum"]),
    )


def _usage(schedule: KernelSchedule, memory: str) -> list[int]:
    """Bytes in each stretch of time, at its fullest."""
    total = schedule.total_seconds
    partitions = schedule.core.spec.partitions
    changes: list[tuple[float, int]] = []
    for storage, first, last, _ in schedule.found.lives:
        if storage.memory == memory:
            size = partitions * storage.free_size * numpy_dtype(storage.dtype).itemsize
            end = max(schedule.starts[first], schedule.ends[last])
            changes += [(schedule.starts[first], size), (end, -size)]
    changes.sort()
    found, now = [0] * _STRETCHES, 0
    place = 0
    for when, change in changes:
        at = min(_STRETCHES - 1, int(when / total * _STRETCHES)) if total else 0
        while place < at:
            place += 1
            found[place] = now
        now += change
        found[at] = max(found[at], now)
    for later in range(place + 1, _STRETCHES):
        found[later] = now
    return found


def _hbm(program: KernelProgram) -> list[Tensor]:
    arguments = set(map(id, program.arguments))
    results = {id(access.storage) for access in program.results}
    found = []
    for s in program.storages:
        if s.on_chip:
            continue
        category: Category = "workspace"
        if id(s) in arguments:
            category = "inputs"
        elif id(s) in results:
            category = "outputs"
        found.append(Tensor(s.name or s.location, _bytes(s), category, _type(s)))
    return found


def _bytes(s: Storage) -> int:
    return s.size * numpy_dtype(s.dtype).itemsize


def _type(s: Storage) -> str:
    return "x".join([*map(str, s.shape), s.dtype])


def _peak(tensors: Sequence[Tensor], count: int) -> HbmPeak:
    whole = ceil(sum(t.bytes for t in tensors))
    by: dict[Category, int] = dict.fromkeys(CATEGORIES, 0)
    for t in tensors:
        by[t.category] += t.bytes
    biggest = sorted(tensors, key=lambda t: -t.bytes)[:_SHOWN]
    return HbmPeak(whole, by, tuple(biggest), (whole,) * count)
