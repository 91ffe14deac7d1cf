"""Remove copies that a compiler does not make: a result is written where it is
assigned.

In the older style an instruction returns a tile, and `tile[...] = nisa.activation(...)`
assigns it. A trace has both steps. The chip has one step, because the instruction
writes to the assigned tile (kernels that name their destination are as fast on trn2,
and the time of the copies is in no published counter). The results stay the same bit
for bit: a copy is removed only if it neither moves to another memory nor changes the
type, and nothing else reads the copied tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from typing import NamedTuple

from neuronjax.ir.kernel import (
    Access,
    Item,
    KernelBlock,
    KernelInstruction,
    KernelProgram,
    Storage,
)
from neuronjax.ir.record import changed

#: The program and the ordinal of an instruction.
Name = tuple[int, int]
#: How many instructions before a copy are searched for its source's writer.
_NEAR = 8


class _ResultUse(NamedTuple):
    """The only writer and the only reader of a storage."""

    writer: KernelInstruction | None
    reader: KernelInstruction | None


def without_copies(
    program: KernelProgram, assigned: Set[Name], declared: Set[Storage]
) -> KernelProgram:
    """Return the program without the copies by assignments that a compiler leaves out.
    Assignments, `tile[...] = value`, have emitted the copies `assigned`. The kernel
    declares the tensors in the storages `declared`; all other storages hold values that
    instructions returned."""
    if not assigned:
        return program
    kept = declared | {a.storage for a in program.results}
    body = _block(program.body, _uses(program.body, kept), assigned)
    before, after = _accessed(program.body), _accessed(body)
    storages = [s for s in program.storages if s in after or s not in before]
    return replace(program, body=body, storages=tuple(storages))


def _accessed(body: KernelBlock) -> set[Storage]:
    return {a.storage for i in body.walk() for a in (*i.outputs, *_read(i))}


def _uses(body: KernelBlock, kept: Set[Storage]) -> dict[Storage, _ResultUse]:
    """Return the storages with one writer and one reader, except those in `kept`."""
    writers: dict[Storage, list[KernelInstruction]] = {}
    readers: dict[Storage, list[KernelInstruction]] = {}
    for i in body.walk():
        for access in i.outputs:
            writers.setdefault(access.storage, []).append(i)
        for access in _read(i):
            readers.setdefault(access.storage, []).append(i)
    return {
        s: _ResultUse(w[0], readers[s][0])
        for s, w in writers.items()
        if len(w) == 1 and len(readers.get(s, ())) == 1 and s not in kept
    }


def _read(i: KernelInstruction) -> list[Access]:
    reads = [a for a in i.inputs if isinstance(a, Access)]
    reads += [index for a in i.accesses if (index := a.index) is not None]
    if i.reads_outputs:
        reads += i.outputs
    return reads


def _block(
    block: KernelBlock, uses: dict[Storage, _ResultUse], assigned: Set[Name]
) -> KernelBlock:
    items: list[Item] = []
    for item in block.items:
        if not isinstance(item, KernelInstruction):
            items.append(replace(item, body=_block(item.body, uses, assigned)))
        elif (item.program, item.ordinal) not in assigned or not _joined(
            items, item, uses
        ):
            items.append(item)
    return KernelBlock(tuple(items))


def _joined(
    items: list[Item], copy: KernelInstruction, uses: dict[Storage, _ResultUse]
) -> bool:
    """Let the copied tile's writer write to the target; return whether it can."""
    if copy.name not in ("tensor_copy", "dma_copy"):
        return False
    (source, *_), (target, *_) = copy.inputs, copy.outputs
    if not isinstance(source, Access) or not _same_kind(source, target):
        return False
    use = uses.get(source.storage)
    if use is None or use.reader is not copy:
        return False
    near = _near(items, use.writer, target.storage)
    if near is None:
        return False
    at, writer = near
    if copy.name == "dma_copy" and writer.name != "dma_copy":
        return False  # only DMA can write to these partitions
    if not _can_write(writer, source, target):
        return False
    outputs = [target if a.storage is source.storage else a for a in writer.outputs]
    joined = items[at] = changed(writer, outputs=tuple(outputs))
    after = uses.get(target.storage)
    if after is not None and after.writer is copy:  # the tile may be copied once more
        uses[target.storage] = after._replace(writer=joined)
    return True


def _same_kind(source: Access, target: Access) -> bool:
    return (
        source.storage.memory == target.storage.memory
        and source.storage.on_chip
        and source.dtype == target.dtype == source.storage.dtype
        and source.shape == target.shape
        and target.dynamic is None
    )


def _near(
    items: list[Item], writer: KernelInstruction | None, target: Storage
) -> tuple[int, KernelInstruction] | None:
    """Return the index and the item of the writer if no later item uses the target."""
    assert writer is not None
    for at in range(len(items) - 1, max(-1, len(items) - 1 - _NEAR), -1):
        item = items[at]
        if not isinstance(item, KernelInstruction):
            return None
        if (item.program, item.ordinal) == (writer.program, writer.ordinal):
            return at, item
        touched = (*item.outputs, *_read(item))
        if any(access.storage is target for access in touched):
            return None
    return None


def _can_write(writer: KernelInstruction, source: Access, target: Access) -> bool:
    """Return whether an instruction writes all of `source` and may write `target`."""
    if writer.reads_outputs:
        return False
    written = [a for a in writer.outputs if a.storage is source.storage]
    if len(written) != 1 or written[0] != source:
        return False
    if any(a.storage is target.storage for a in writer.outputs):
        return False
    read = [a for a in _read(writer) if a.storage is target.storage]
    return all(a == target or not _overlap(a, target) for a in read)


def _overlap(a: Access, b: Access) -> bool:
    if a.dynamic is not None or a.dtype != b.dtype:
        return True
    pairs = zip(_spans(a), _spans(b), strict=True)
    return all(
        first <= other_last and other_first <= last
        for (first, last), (other_first, other_last) in pairs
    )


def _spans(a: Access) -> Iterator[tuple[int, int]]:
    free = a.storage.free_size
    row, column = divmod(a.offset, free)
    (_, rows), *rest = a.pattern
    yield row, row + rows - 1
    steps = [stride * (count - 1) for stride, count in rest]
    yield column + sum(min(s, 0) for s in steps), column + sum(max(s, 0) for s in steps)
