"""The earlier instructions for which each instruction (*entry*) of a kernel waits.

An access to a storage touches a *box*, a range of each dimension
(`kernel_operands.box`). A read waits for earlier writes of overlapping boxes, a write
waits for earlier reads and writes of overlapping boxes. A kernel reads and writes a
large tile piece by piece. `BoxMap` divides one dimension into cells as long as the
first piece, so that a search for overlaps looks into one or two cells.

A storage to which the user gives no address takes SBUF or PSUM that was never used. If
there is none, it takes the memory of a dead storage (one that no later entry accesses),
the longest dead first, and waits for the last accesses to that storage. Storages with
addresses overlap if their bytes do. Bytes are those of a partition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from neuronjax.hardware import CoreSpec
from neuronjax.ir.kernel import (
    Access,
    KernelInstruction,
    KernelProgram,
    Register,
    Storage,
)
from neuronjax.timing.kernel_operands import (
    Box,
    box,
    contains,
    numpy_dtype,
    overlap,
    row_bytes,
    whole_pattern,
)

#: For each entry, the entries for which it waits. A wait is encoded as twice the number
#: of the awaited entry, plus 1 if the latency of its result does not delay the waiter.
Waits = list[list[int]]
_HBM = frozenset({"private_hbm", "shared_hbm"})
#: A tile's writers wait for the entries that last accessed earlier tiles in the same
#: memory. If these are more than `_FEW`, they form a group, for which all writers wait.
_FEW = 8
#: A box that extends over more cells than this is in a list that every search reads.
_MOST_CELLS = 4

_Found = list[tuple[Box, int]]


class BoxMap:
    """A searchable set of boxes, each with the number of an instruction that uses it.

    A box has a range for each dimension of a storage, whose shape is `shape`. If
    `shape` is (), the ranges are of partitions and bytes of a memory. The box None is
    the whole storage. It is the most frequent box, and has a list of its own."""

    __slots__ = ("_axis", "_cells", "_shape", "_whole", "_wide", "_width")

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self._shape = shape
        self._whole: list[int] = []
        self._axis = -1  # the first box defines axis and cells

    def add(self, b: Box, entry: int) -> None:
        if b is None:
            self._whole.append(entry)
            return
        if self._axis < 0:
            self._measure(b)
        cells = self._range(b)
        if cells is None:
            self._wide.append((b, entry))
            return
        for cell in cells:
            self._cells.setdefault(cell, []).append((b, entry))

    def entries(self) -> list[int]:
        found = self._whole.copy()
        if self._axis >= 0:
            for part in (self._wide, *self._cells.values()):
                found += [entry for _, entry in part]
        return found

    def meeting(self, b: Box) -> list[int]:
        """Return the numbers of the entries that access boxes that overlap `b`."""
        if b is None:
            return self.entries()
        found = self._whole.copy()
        if self._axis < 0:
            return found
        for part in self._places(b):
            found += [e for other, e in part if other is b or overlap(other, b)]
        return found

    def drop_within(self, b: Box) -> None:
        """Remove the boxes that `b` contains."""
        if b is None:
            self._whole.clear()
            self._wide, self._cells = [], {}
        elif self._axis >= 0:
            for found in self._places(b):
                found[:] = [pair for pair in found if not contains(b, pair[0])]

    def _measure(self, b: tuple[tuple[int, int], ...]) -> None:
        sizes = [last - first for first, last in b]
        axes = range(len(b))
        if self._shape:
            axis = max(axes, key=lambda n: self._shape[n] // sizes[n])
        else:
            axis = axes[-1]
        self._axis, self._width = axis, sizes[axis]
        self._cells: dict[int, _Found] = {}
        self._wide: _Found = []

    def _range(self, b: Box) -> range | None:
        """Return the numbers of the cells that `b` touches; None if they are more than
        `_MOST_CELLS`, or if `b` is None (the whole storage)."""
        if b is None:
            return None
        first, last = b[self._axis]
        cells = range(first // self._width, (last - 1) // self._width + 1)
        return cells if len(cells) <= _MOST_CELLS else None

    def _places(self, b: Box) -> Iterator[_Found]:
        yield self._wide
        cells = self._range(b)
        if cells is None:
            yield from self._cells.values()
            return
        for cell in cells:
            if cell in self._cells:
                yield self._cells[cell]


class _StorageAccesses:
    """The accesses to a storage for which a later access may have to wait."""

    __slots__ = ("bytes", "freed", "readers", "whole", "writers")

    def __init__(self, s: Storage | None = None) -> None:
        shape = s.shape if s is not None else ()
        self.writers = BoxMap(shape)
        self.readers = BoxMap(shape)
        #: The last accesses to the storages that had this storage's memory before.
        self.freed: Sequence[int] = ()
        self.whole = whole_pattern(shape) if s is not None else None
        self.bytes = row_bytes(s) if s is not None else 0

    def read(self, b: Box, entry: int) -> list[int]:
        self.readers.add(b, entry)
        return self.writers.meeting(b)

    def write(self, b: Box, entry: int) -> list[int]:
        writers, readers = self.writers, self.readers
        found = writers.meeting(b) + readers.meeting(b)
        found += self.freed
        if b is None:
            self.freed = ()
        writers.drop_within(b)
        readers.drop_within(b)
        writers.add(b, entry)
        return found

    def last(self) -> list[int]:
        """Return the entries that have to end before another storage can take this
        storage's memory."""
        found = self.writers.entries()
        if not found:
            found += self.freed  # without a write, nothing has waited for `freed`
        return found + self.readers.entries()


class _OnChipRoom:
    """The SBUF or PSUM of a core: the bytes that were never used, and the bytes of
    storages that no later entry accesses (*dead* storages), both per partition."""

    def __init__(self, capacity: int) -> None:
        self.free = capacity
        self.dead: deque[tuple[int, list[int]]] = deque()
        self.is_short = False

    def take(self, size: int) -> list[int]:
        """Take `size` bytes for a new storage: first bytes that were never used, then
        those of dead storages, the longest dead first. Return the entries with the last
        accesses to these dead storages, since the new storage waits for the entries."""
        waits: list[int] = []
        while self.free < size and self.dead:
            room, last = self.dead.popleft()
            waits += last
            self.free += room
            if self.free > size:  # the rest can be taken later
                self.dead.appendleft((self.free - size, last))
                self.free = size
        if self.free < size:
            self.is_short = True
        self.free -= size
        return waits

    def give(self, size: int, last: list[int]) -> None:
        self.dead.append((size, last))


class KernelDependencies:
    """The dependencies of a kernel's instructions (*entries*), which `run` finds.

    Attributes:
        waits: by entry, the entries and groups for which it waits, encoded as in
            `Waits`.
        joined: groups of entries; in `waits` group g has the number len(entries) + g.
        stationary: by entry of TensorE, a number that identifies the data of its
            stationary operand: equal numbers mean equal data.
        order: by entry of TensorE, the earlier entries of TensorE that write the same
            sums in PSUM, and so have to be issued before the entry.
        lives: for each storage on chip: (storage, first entry that accesses it, last
            entry that accesses it, core).
    """

    def __init__(
        self, program: KernelProgram, entries: Sequence[KernelInstruction], cores: int
    ) -> None:
        self._entries, self._cores = entries, cores
        self._regions: dict[object, _StorageAccesses] = {}
        self._pools: dict[tuple[str, int], _OnChipRoom] = {}
        self._read_in_hbm: set[int] = set()
        self._written: set[int] = set()
        self._first: dict[int, tuple[Storage, int, int]] = {}
        self._last: dict[int, int] = {}
        self._registers: dict[int, int] = {}
        self.waits: Waits = [[] for _ in entries]
        self.joined: list[list[int]] = []
        self.stationary: dict[int, int] = {}
        self.order: dict[int, list[int]] = {}
        self._held: dict[object, int] = {}
        self.lives: list[tuple[Storage, int, int, int]] = []
        self._survey()
        self._given = program.dependencies

    def run(self, spec: CoreSpec) -> KernelDependencies:
        """Find, for each entry, the earlier entries for which it waits, if the kernel
        runs on cores of the kind `spec`; return self."""
        sizes = {
            "sbuf": spec.sbuf_usable_bytes_per_partition,
            "psum": spec.psum_bytes // spec.partitions,
        }
        for core in range(self._cores):
            for memory, size in sizes.items():
                self._pools[memory, core] = _OnChipRoom(size)
        deaths: dict[int, list[int]] = {}
        for number, entry in self._last.items():
            deaths.setdefault(entry, []).append(number)
        for n, i in enumerate(self._entries):
            self._entry(n, i)
            for number in deaths.get(n, ()):
                s, _, core = self._first[number]
                if s.address is None:
                    region = self._regions.pop(number)
                    last = self._as_one(region.last())
                    self._pools[s.memory, core].give(region.bytes, last)
        self._add_barriers()
        self._add_given()
        self.lives = [
            (s, first, self._last[number], core)
            for number, (s, first, core) in self._first.items()
        ]
        return self

    @property
    def short(self) -> tuple[str, ...]:
        """Return the memories ("PSUM", "SBUF") that are too small for the storages that
        the kernel uses at the same time."""
        return tuple(
            sorted({m.upper() for (m, _), p in self._pools.items() if p.is_short})
        )

    def _survey(self) -> None:
        first, last = self._first, self._last
        written, read = self._written, self._read_in_hbm
        for n, i in enumerate(self._entries):
            for in_hbm, accesses in ((written, i.outputs), (read, i.inputs)):
                for access in accesses:
                    if type(access) is not Access:
                        continue
                    s = access.storage
                    number = s.number
                    if number in last:
                        last[number] = n
                    elif s.memory in _HBM:
                        in_hbm.add(number)
                    elif s.memory != "registers":
                        first[number] = (s, n, i.program % self._cores)
                        last[number] = n

    def _entry(self, n: int, i: KernelInstruction) -> None:
        by_tensor = i.engine == "tensor"
        found: list[int] = []
        for access in i.inputs:
            self._read_index(n, access, found)  # type: ignore[arg-type]
            if by_tensor and access is i.inputs[0] and isinstance(access, Access):
                self._note_stationary(n, access, found)
        for access in i.outputs:
            self._write(n, access, by_tensor, found)
        if i.writes_register is not None:
            self._registers[i.writes_register.number] = n
        if found:
            unique = dict.fromkeys(found) if len(found) > 1 else found
            self.waits[n] = [w for w in unique if w >> 1 != n]  # not for itself

    def _note_stationary(self, n: int, held: Access, waits: list[int]) -> None:
        written = max(waits, default=-1)
        moves = n if held.dynamic is not None else None
        key = (held.storage.number, held.offset, held.pattern, written, moves)
        self.stationary[n] = self._held.setdefault(key, len(self._held))

    def _read_index(self, n: int, index: Access | Register, found: list[int]) -> None:
        if isinstance(index, Access):
            self._read(n, index, found)
        elif index.number in self._registers:
            found.append(self._registers[index.number] * 2)

    def _read(self, n: int, access: Access, found: list[int]) -> None:
        if access.dynamic is not None:
            self._read_index(n, access.dynamic.index, found)
        s = access.storage
        if s.memory in _HBM and s.number not in self._written:
            return
        region, b = self._region(s, access)
        latency = int(s.memory == "registers")
        found += [w * 2 + latency for w in region.read(b, n)]

    def _write(self, n: int, access: Access, by_tensor: bool, found: list[int]) -> None:
        if access.dynamic is not None:
            self._read_index(n, access.dynamic.index, found)
        s = access.storage
        if s.memory in _HBM and s.number not in self._read_in_hbm:
            return
        region, b = self._region(s, access)
        before = region.write(b, n)
        if by_tensor:  # matmuls add to a sum in order, without waiting
            same = [w for w in before if self._is_tensors(w)]
            if same:
                self.order[n] = same
                before = [w for w in before if not self._is_tensors(w)]
        latency = int(s.memory == "registers")
        found += [w * 2 + latency for w in before]

    def _is_tensors(self, entry: int) -> bool:
        entries = self._entries
        return entry < len(entries) and entries[entry].engine == "tensor"

    def _region(self, s: Storage, access: Access) -> tuple[_StorageAccesses, Box]:
        if s.address is not None and s.memory not in _HBM:
            core = self._first[s.number][2]
            # Storages with addresses may overlap, so all in a memory share one record.
            shared = self._regions.setdefault((s.memory, core), _StorageAccesses())
            return shared, _absolute(s, box(access))
        region = self._regions.get(s.number)
        if region is None:
            region = self._regions[s.number] = _StorageAccesses(s)
            if s.number in self._first:
                pool = self._pools[s.memory, self._first[s.number][2]]
                region.freed = self._as_one(pool.take(region.bytes))
        is_whole = access.pattern == region.whole and access.dtype == s.dtype
        if is_whole and access.dynamic is None:
            return region, None
        return region, box(access)

    def _as_one(self, entries: list[int]) -> list[int]:
        if len(entries) < 2:
            return entries
        unique = list(dict.fromkeys(entries))
        if len(unique) <= _FEW:
            return unique
        self.joined.append(unique)
        return [len(self._entries) + len(self.joined) - 1]

    def _add_given(self) -> None:
        if not self._given:
            return
        at: dict[tuple[int, int], int] = {}
        for n, i in enumerate(self._entries):
            at[i.program, i.ordinal] = n
            for before in self._given.get((i.program, i.ordinal), ()):
                if (i.program, before) in at:
                    self.waits[n].append(at[i.program, before] * 2)

    def _add_barriers(self) -> None:
        """Let a barrier wait for all earlier entries of its program, and entries after
        a program's k-th barrier wait for the k-th barriers of all programs."""
        met: dict[int, list[int]] = {}
        for n, i in enumerate(self._entries):
            if i.name == "core_barrier":
                met.setdefault(i.program, []).append(n)
        if not met:
            return
        before: dict[int, list[int]] = {}
        passed: dict[int, int] = {}
        for n, i in enumerate(self._entries):
            k = passed.get(i.program, 0)
            if i.name == "core_barrier":
                self.waits[n] += [b * 2 for b in before.pop(i.program, [])]
                passed[i.program] = k + 1
                continue
            before.setdefault(i.program, []).append(n)
            if k:
                self.waits[n] += [m[k - 1] * 2 for m in met.values() if len(m) >= k]


def _absolute(s: Storage, b: Box) -> Box:
    assert s.address is not None
    item = numpy_dtype(s.dtype).itemsize
    partition, start = s.address
    rows, low, high = (0, s.shape[0]), 0, s.free_size
    if b is not None:
        rows, low, high = b[0], 0, 0
        for (first, last), size in zip(b[1:], s.shape[1:], strict=True):
            low, high = low * size + first, high * size + last - 1
        high += 1
    return (
        (partition + rows[0], partition + rows[1]),
        (start + low * item, start + high * item),
    )
