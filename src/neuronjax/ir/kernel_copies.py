"""Copies that a compiler does not make: a result is written where it is assigned.

In the older style an instruction returns a tile, and `tile[...] = nisa.activation(...)`
assigns it. A trace has both steps; the chip has one, for the instruction writes to the
assigned tile (kernels that name their destination are as fast on trn2, and the time of
the copies is in no published counter). What is computed is the same bit for bit: only
copies go that neither move to another memory nor change the type, of a tile that
nothing else reads.
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

#: Program and ordinal of an instruction.
Name = tuple[int, int]
#: Instructions between a result and its assignment; further back nothing is looked for.
_NEAR = 8


class _ResultUse(NamedTuple):
    """Who writes and reads a storage, each if it is one instruction alone."""

    writer: KernelInstruction | None
    reader: KernelInstruction | None


def without_copies(
    program: KernelProgram, assigned: Set[Name], declared: Set[Storage]
) -> KernelProgram:
    """The program without the copies of assignments that a compiler leaves out.

    Args:
        program: a traced kernel.
        assigned: the instructions that are copies of an assignment.
        declared: storages of tensors that the kernel declares; all others are results
            of instructions.
    """
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
    """Of results on chip, those with one writer and one reader."""
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
    """What an instruction reads, the tiles of indices included."""
    found = [a for a in i.inputs if isinstance(a, Access)]
    for access in (*found, *i.outputs):
        if access.dynamic is not None and isinstance(access.dynamic.index, Access):
            found.append(access.dynamic.index)
    if i.reads_outputs:
        found += i.outputs
    return found


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
    """Lets the instruction that made the copied tile write to the copy's; False if it
    cannot."""
    if copy.name not in ("tensor_copy", "dma_copy"):
        return False
    (source, *_), (target, *_) = copy.inputs, copy.outputs
    if not isinstance(source, Access) or not _same_kind(source, target):
        return False
    use = uses.get(source.storage)
    if use is None or use.reader is not copy:
        return False
    found = _near(items, use.writer, target.storage)
    if found is None:
        return False
    at, writer = found
    if copy.name == "dma_copy" and writer.name != "dma_copy":
        return False  # only DMA reaches these partitions
    if not _can_write(writer, source, target):
        return False
    outputs = [target if a.storage is source.storage else a for a in writer.outputs]
    joined = items[at] = changed(writer, outputs=tuple(outputs))
    after = uses.get(target.storage)
    if after is not None and after.writer is copy:  # which may be copied once more
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
    """Where the writer stands, if nothing after it touches the target's storage."""
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
    """Whether it writes just what is copied, and reads the target in place or not."""
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
    """Whether the spans of two accesses of a storage meet, in partitions and free
    elements."""
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
