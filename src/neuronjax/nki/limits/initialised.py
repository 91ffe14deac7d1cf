"""A search for reads of elements that nothing wrote, without running the program.

Every storage has a map of its written elements, which follows the order of the text;
the body of a device loop is read once, as its first iteration. Where only a run can
decide, the program is assumed to be right: a write at a runtime offset may write any
element, a loop may have had iterations, and a read at a runtime offset is an error only
if nothing was written. Such a read may still return fresh memory (NaN, or 4 in
integers) or the contents of an earlier tile.

An engine takes as long for 128 partitions as for 100, so kernels compute with unwritten
partitions. A lane's result from an unwritten partition counts as unwritten; it is an
error only if an instruction that combines lanes reads it, such as a matmul. DMA from
the chip also copies such partitions, with an `UnwrittenWarning`: kernels overwrite them
later, or return padded buffers, in which they are NaN. `nki.check` reports the first
such read.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from neuronjax.errors import InvalidProgramError
from neuronjax.ir.kernel import (
    Access,
    KernelBlock,
    KernelInstruction,
    KernelLoop,
    KernelProgram,
    KernelWhile,
    Storage,
)
from neuronjax.ir.nki_instructions import SPECS
from neuronjax.ir.nki_spec import Reading
from neuronjax.nki.limits.element_maps import ElementNotes
from neuronjax.nki.limits.live_ranges import is_whole, live_ranges
from neuronjax.numerics.mx_layout import GROUP


class UnwrittenWarning(UserWarning):
    """A warning that a kernel stores partitions that nothing wrote."""


Report = Callable[[InvalidProgramError, KernelInstruction], None]


def _raise(error: InvalidProgramError, instruction: KernelInstruction) -> None:
    raise error


@dataclass(eq=False)
class Initialised:
    """The walk over a program that maps which elements of each storage are written."""

    program: KernelProgram
    report: Report = _raise  # called with each finding
    #: Whether a device loop that may have no iteration counts as having none, and
    #: whether computing lane by lane with unwritten partitions counts as a read.
    certain: bool = False
    #: Whether an engine may compute with a partly written tile, such as masks leave.
    partial: bool = False
    #: Whether the program is assumed to be wrong where only a run can decide: a runtime
    #: offset writes nothing and reads all of a tensor, and instructions that ignore a
    #: part of their operand read all of it.
    strict: bool = False

    def __post_init__(self) -> None:
        self.written = ElementNotes(np.bool_)
        # Storage -> the line that copied unwritten partitions to it.
        self._spoilt: dict[Storage, str | None] = {}
        # Position -> the storages that no later instruction accesses.
        self._last: dict[int, list[Storage]] = defaultdict(list)
        kept = {access.storage for access in self.program.results}
        for storage, segments in live_ranges(self.program).segments.items():
            if storage not in kept:
                self._last[segments[-1][1]].append(storage)
        self._position = 0

    def check(self) -> None:
        """Walk through the program, and report reads of unwritten elements."""
        self.written |= dict.fromkeys(self.program.arguments, True)
        self._block(self.program.body)

    def _block(self, block: KernelBlock) -> None:
        for item in block.items:
            if isinstance(item, KernelInstruction):
                self._instruction(item)
                continue
            uncertain = self.certain and not _surely_iterates(item)
            before = self.written.copied() if uncertain else None
            self._block(item.body)
            if before is not None:
                self.written = before

    def _instruction(self, i: KernelInstruction) -> None:
        spoilt = None if self.certain else self._passed_on(i)
        for access in _reads(i):
            if spoilt is None or access not in spoilt.sources:
                self._read(i, access)
            elif not i.outputs[0].storage.on_chip:
                rows = int(np.count_nonzero(spoilt.partitions))
                count = rows * access.size // len(spoilt.partitions)
                error = self._unwritten(i, access, count)
                warnings.warn(f"stored: {error}", UnwrittenWarning, stacklevel=2)
        for access in i.outputs:
            self._write(access)
            if spoilt is not None and access.storage.memory != "registers":
                self._spoil(i, access, spoilt.partitions)
        for storage in self._last.get(self._position, ()):
            if isinstance(self.written.get(storage), np.ndarray):
                del self.written[storage]
        self._position += 1

    def _passed_on(self, i: KernelInstruction) -> _Spoilt | None:
        """Return the partitions of results that are computed from unwritten partitions;
        None if there are none, or if `i` must not read unwritten partitions."""
        if _reads_as(i) != "lanes" or any(a.dynamic for a in i.outputs):
            return None
        partitions = np.zeros(i.outputs[0].shape[0], np.bool_)
        sources = []
        for access in _reads(i):
            part = self._unwritten_partitions(access)
            if part is None:
                continue
            if part.shape != partitions.shape or part.all() or _shares_groups(i, part):
                return None
            partitions |= part
            sources.append(access)
        return _Spoilt(partitions, tuple(sources)) if sources else None

    def _unwritten_partitions(self, access: Access) -> np.ndarray | None:
        """Return a mask of unwritten partitions, or None if all are written or one is
        written in part."""
        known = isinstance(self.written.get(access.storage), np.ndarray)
        if not known or access.dynamic is not None or not access.storage.on_chip:
            return None
        view = self.written.view(access)
        rows = view.reshape(view.shape[0], -1)
        written = rows.all(axis=1)
        if written.all() or not np.array_equal(rows.any(axis=1), written):
            return None
        return np.logical_not(written)

    def _spoil(self, i: KernelInstruction, access: Access, part: np.ndarray) -> None:
        if access.shape[0] != len(part):
            return
        self.written.view(access)[part] = False
        self._spoilt[access.storage] = i.location

    def _read(self, i: KernelInstruction, access: Access) -> None:
        storage = access.storage
        written = self.written.get(storage, False)
        if written is True or _is_preset(storage):
            return
        if written is False:
            self.report(self._unwritten(i, access, access.size), i)
            self.written[storage] = True  # reported once
            return
        in_part = _reads_as(i) == "part" or i.attributes.get("is_transpose")
        in_part = in_part or (self.partial and i.engine != "dma")
        if (access.dynamic is not None or in_part) and not self.strict:
            return
        if access.dynamic is not None:
            access = Access(storage, storage.dtype, 0, ((1, storage.size),))
        view = self.written.view(access)
        if view.all():
            if is_whole(access):
                self.written[storage] = True
            return
        missing = view.size - int(np.count_nonzero(view))
        missing = -(-missing * access.size // view.size)
        self.report(self._unwritten(i, access, missing), i)
        self.written[storage] = True

    def _write(self, access: Access) -> None:
        storage = access.storage
        if self.written.get(storage) is True or storage.memory == "registers":
            return
        if access.dynamic is None:
            self.written.write(access, True)
        elif not self.strict:
            self.written[storage] = True

    def unwritten(self, access: Access) -> int:
        """Return how many elements of a view are unwritten so far."""
        written = self.written.get(access.storage, False)
        if isinstance(written, bool):
            return 0 if written or _is_preset(access.storage) else access.size
        view = self.written.view(access)
        return (view.size - int(np.count_nonzero(view))) * access.size // view.size

    def _unwritten(
        self, i: KernelInstruction, access: Access, count: int
    ) -> InvalidProgramError:
        storage = access.storage
        name = f" {storage.name!r}" if storage.name else ""
        every = "all" if count == access.size else f"{count:,} of"
        state = "were never written"
        if storage in self._spoilt:
            state = f"were computed by {self._spoilt[storage]} from unwritten elements"
        return InvalidProgramError(
            f"reads {access.dtype}{list(access.shape)} of the tensor{name} "
            f"{storage.dtype}{list(storage.shape)} in {storage.memory}; {every} "
            f"{access.size:,} elements {state}",
            op=f"nisa.{i.name}",
            location=i.location,
            remedy=f"the tensor was allocated at {storage.location}: write it first "
            "(nisa.memset, nisa.dma_copy), or read only the part that was written",
        )


def _reads_as(i: KernelInstruction) -> Reading:
    return SPECS[i.name].reads if i.name in SPECS else "all"


def _shares_groups(i: KernelInstruction, part: np.ndarray) -> bool:
    """Return whether partitions inside and outside of `part` are quantized together."""
    groups = part.reshape(-1, GROUP) if i.name == "quantize_mx" else part[:, None]
    return not np.array_equal(groups.any(axis=1), groups.all(axis=1))


class _Spoilt(NamedTuple):
    """Partitions of the results that are computed from unwritten partitions."""

    partitions: np.ndarray  # a mask
    sources: tuple[Access, ...]  # the operands with unwritten partitions


def _is_preset(storage: Storage) -> bool:
    """Return whether a storage starts with values, as engine state and constants do."""
    return storage.memory == "registers" or storage.initial is not None


def _surely_iterates(loop: KernelLoop | KernelWhile) -> bool:
    if isinstance(loop, KernelWhile):
        return False
    known = isinstance(loop.start, int) and isinstance(loop.stop, int)
    return known and loop.start < loop.stop  # type: ignore[operator]


def _reads(i: KernelInstruction) -> Iterator[Access]:
    keeps = i.name in SPECS and SPECS[i.name].keeps
    yield from (a for a in i.inputs if isinstance(a, Access))
    if i.reads_outputs and not keeps:
        yield from i.outputs
    yield from filter(None, (a.index for a in i.accesses))


def surely_writes(program: KernelProgram) -> bool:
    """Return whether everything read or returned is written in every possible run.

    False means only that this cannot be shown."""
    errors: list[InvalidProgramError] = []
    report: Report = lambda error, _: errors.append(error)  # noqa: E731
    state = Initialised(program, report=report, certain=True, strict=True)
    state.check()
    return not errors and not any(map(state.unwritten, program.results))


def check_results(program: KernelProgram) -> None:
    """Refuse results, other than arguments, that no instruction writes.

    Results written only in part are accepted, since kernels return padded buffers;
    `nki.check` reports them."""
    written = {a.storage for i in program.body.walk() for a in i.outputs}
    for number, access in enumerate(program.results):
        storage = access.storage
        given = storage in program.arguments or storage in written
        if not given and not _is_preset(storage):
            name = f" {storage.name!r}" if storage.name else ""
            raise InvalidProgramError(
                f"result {number}{name}, {access.dtype}{list(access.shape)}, is never "
                "written",
                op=f"kernel {program.name}",
                location=storage.location,
                remedy="write it (nisa.dma_copy), or do not return it",
            )
