"""Assign storages to slots: places in arrays that several storages share.

Storages of equal memory, shape and dtype share a *pool*, an array of slots. A slot is
free again after its storage's last use, and the lowest free slot is taken next, so
equal iterations of an unrolled loop use equal slots. Arguments have pools of their own.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from neuronjax.ir.kernel import KernelBlock, KernelInstruction, KernelProgram, Storage


class SlotPool(NamedTuple):
    """An array of slots.

    Attributes:
        memory, shape, dtype: those of its storages.
        argument: the number of the kernel argument that fills it, or None.
    """

    memory: str
    shape: tuple[int, ...]
    dtype: str
    slots: int
    argument: int | None


class PoolSlot(NamedTuple):
    """The pool and slot of a storage."""

    pool: int
    slot: int


@dataclass
class _LiveRange:
    first: int
    last: int


@dataclass
class _Liveness:
    """The first and last use of every storage, as positions in the program."""

    ranges: dict[Storage, _LiveRange] = field(default_factory=dict)
    position: int = 0

    def block(self, block: KernelBlock) -> None:
        for item in block.items:
            if isinstance(item, KernelInstruction):
                for access in item.every_access:
                    self.use(access.storage, self.position)
                self.position += 1
            else:
                self.loop(item.body)

    def loop(self, body: KernelBlock) -> None:
        """Extend to a loop's end the live ranges of storages that exist before it."""
        start, ordinal = self.position, min((i.ordinal for i in body.walk()), default=0)
        self.block(body)
        used = {a.storage for i in body.walk() for a in i.every_access}
        for storage in used:
            if storage.position <= ordinal or self.ranges[storage].first < start:
                self.use(storage, start)
                self.use(storage, max(self.position - 1, start))

    def use(self, storage: Storage, position: int) -> None:
        live = self.ranges.setdefault(storage, _LiveRange(position, position))
        live.first = min(live.first, position)
        live.last = max(live.last, position)


def assign(
    program: KernelProgram, shared: bool = True
) -> tuple[list[SlotPool], dict[Storage, PoolSlot]]:
    """Return the pools, and the pool and slot of every storage; if `shared`, storages
    may use a slot one after another."""
    liveness = _Liveness()
    liveness.block(program.body)
    end = liveness.position
    for access in program.results:
        liveness.use(access.storage, end)
    for storage in list(liveness.ranges):
        if storage.memory == "shared_hbm":  # all programs of a grid use it
            liveness.use(storage, 0)
            liveness.use(storage, end)
    places: dict[Storage, PoolSlot] = {}
    pools: list[SlotPool] = []
    for number, storage in enumerate(program.arguments):
        places[storage] = PoolSlot(len(pools), 0)
        kind = (storage.memory, storage.shape, storage.dtype)
        pools.append(SlotPool(*kind, slots=1, argument=number))
    groups: dict[tuple, list[tuple[Storage, _LiveRange]]] = defaultdict(list)
    for storage, ranges in liveness.ranges.items():
        if storage not in places:
            # A storage that starts with its own data is never overwritten by another.
            own = storage.number if storage.initial is not None else None
            kind = (storage.memory, storage.shape, storage.dtype, own)
            groups[kind].append((storage, ranges))
    for kind, members in groups.items():
        slots = _pack(members, len(pools), places, shared)
        pools.append(SlotPool(*kind[:3], slots=slots, argument=None))
    return pools, places


def _pack(
    members: Iterable[tuple[Storage, _LiveRange]],
    pool: int,
    places: dict[Storage, PoolSlot],
    shared: bool,
) -> int:
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    slots = 0
    for storage, live in sorted(members, key=lambda m: (m[1].first, m[0].number)):
        while shared and busy and busy[0][0] < live.first:
            heapq.heappush(free, heapq.heappop(busy)[1])
        slot = heapq.heappop(free) if free else slots
        slots = max(slots, slot + 1)
        places[storage] = PoolSlot(pool, slot)
        heapq.heappush(busy, (live.last, slot))
    return slots
