"""NKI kernels as instructions over partial views, as a trace leaves them.

This is the tile-sized counterpart of `ir.instruction`: operands are strided accesses to
storages that are written many times; loops with a run-time count are nested blocks, and
everything else is unrolled. Names are those of `nki.isa`. Offsets and strides count
elements of the access's dtype; addresses count bytes. `execution.kernels` executes
kernels on arrays, `timing` computes their cycles and bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from neuronjax.ir.record import record

# "registers": the state of an engine between instructions (accumulators, random number
# generators); a kernel cannot address it.
Memory = Literal["sbuf", "psum", "private_hbm", "shared_hbm", "registers"]
ON_CHIP = frozenset({"sbuf", "psum", "registers"})
DynamicKind = Literal["scalar", "vector", "indirect"]

NO_ATTRIBUTES: Mapping[Any, Any] = MappingProxyType({})


@record(eq=False)
class Storage:
    """A piece of memory, as one `nl.ndarray` allocates it; compared by identity."""

    number: int  # unique in its kernel, in order of allocation
    memory: Memory  # where it lies
    shape: tuple[int, ...]  # on chip, partitions first
    dtype: str  # nki name of the elements, see `ir.nki_dtypes`
    name: str = ""  # the user's name, or ""
    #: (partition, byte offset in the partition) if the user fixed them.
    address: tuple[int, int] | None = None
    location: str = ""  # "file:line" of the allocation
    position: int = 0  # how many instructions were emitted before it was allocated
    initial: Any = None  # the data it starts with (`nl.shared_constant`), else None

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def free_size(self) -> int:
        """The number of elements per partition."""
        return prod(self.shape[1:])

    @property
    def on_chip(self) -> bool:
        """Whether the first dimension is the partition."""
        return self.memory in ON_CHIP


@dataclass(frozen=True, slots=True)
class Register:
    """A 32-bit integer that exists when the kernel runs."""

    number: int


@dataclass(frozen=True, slots=True)
class DynamicOffset:
    """The part of an access that is known only at run time."""

    #: "scalar": index * stride is added to the offset. "vector": position p of the
    #: first dimension is at offset + index[p] * stride, with the index read column by
    #: column; that dimension's stride in the pattern is not used. "indirect" (tensor
    #: indirection): position j of the second dimension takes its index from row
    #: j % group and column j // group of its own group of partitions.
    kind: DynamicKind
    #: A register, or an access of integers: a single integer, [P, 1] or [P, K].
    index: Register | Access
    stride: int  # elements per unit of the index
    limit: int  # legal indices are below it; "scalar" limits only the first element
    group: int = 0  # partitions that share offsets, for "indirect"


@record()
class Access:
    """Elements of a storage, as one operand of an instruction. Element (i0, i1, ...) is
    number `offset + i0*stride0 + i1*stride1 + ...` of the storage in row-major order.
    On chip the first pair is that of the partition; its stride is the storage's free
    size. A stride of 0 repeats elements."""

    storage: Storage  # the accessed memory
    dtype: str  # the dtype in which its bits are read, mostly `storage.dtype`
    offset: int  # first element, in elements of `dtype`
    #: (stride, count) of every dimension, outermost first.
    pattern: tuple[tuple[int, int], ...]
    dynamic: DynamicOffset | None = None  # what is added at run time, or None

    @property
    def shape(self) -> tuple[int, ...]:
        """The counts of the dimensions."""
        return tuple(count for _, count in self.pattern)

    @property
    def size(self) -> int:
        return prod(count for _, count in self.pattern)

    @property
    def index(self) -> Access | None:
        """The access that holds its runtime offset, if that is in memory."""
        offset = self.dynamic.index if self.dynamic else None
        return offset if isinstance(offset, Access) else None


class LoopTurn(NamedTuple):
    """One iteration of an unrolled loop."""

    loop: int  # the loop's number; an inner loop has another in every outer iteration
    turn: int  # from 0 on


@record(kw_only=True, eq=False)
class KernelInstruction:
    """One call of a `nki.isa` function."""

    name: str  # the name of the function
    engine: str  # the engine that executes it
    outputs: tuple[Access, ...]  # the accesses that are written
    #: The operands that are read, in the instruction's own order.
    inputs: tuple[Access | Register, ...] = ()
    #: Numeric immediates, which may differ from iteration to iteration: floats are
    #: FP32, ints 32 bits.
    parameters: tuple[int | float, ...] = ()
    #: All static parameters: ops, flags, modes; hashable values.
    attributes: Mapping[str, Any] = field(default_factory=lambda: NO_ATTRIBUTES)
    #: Whether it reads the previous contents of the outputs.
    reads_outputs: bool = False
    location: str = ""  # "file:line" in the kernel
    ordinal: int = 0  # position among the instructions of its program of the grid
    label: str = ""  # the user's `name=`, or ""
    program: int = 0  # which program of the grid emitted it
    #: The register that gets the one result, instead of outputs.
    writes_register: Register | None = None
    #: One letter per operand in the order of the function: "t" a tensor, "r" a register
    #: (both in `inputs`), "f" or "i" a float or int of `parameters`, "-" none.
    forms: str = ""
    #: The iterations of `affine_range` that contain it, outermost first.
    loops: tuple[LoopTurn, ...] = ()
    #: Whether the kernel leaves the engine to the compiler; `engine` is then the one
    #: whose arithmetic the emulator uses.
    is_open: bool = False

    @property
    def accesses(self) -> tuple[Access, ...]:
        """All operands in memory, outputs first."""
        return (*self.outputs, *(i for i in self.inputs if isinstance(i, Access)))

    @property
    def every_access(self) -> Iterator[Access]:
        """The accesses, and those that hold a runtime offset."""
        for access in self.accesses:
            yield access
            if (index := access.index) is not None:
                yield index


@dataclass(frozen=True, slots=True, eq=False)
class KernelLoop:
    """A counted loop of the device: `dynamic_range` and `fori_loop`."""

    register: Register  # the induction variable
    start: int | Register
    stop: int | Register  # exclusive
    step: int  # positive
    body: KernelBlock  # executed in every iteration
    location: str = ""  # "file:line" of the loop


@dataclass(frozen=True, slots=True, eq=False)
class KernelWhile:
    """A loop that runs until the register is 0: `while_loop` and `while register`."""

    condition: Register
    body: KernelBlock
    location: str = ""


Item = KernelInstruction | KernelLoop | KernelWhile


@dataclass(frozen=True, slots=True, eq=False)
class KernelBlock:
    """A sequence of instructions and loops."""

    items: tuple[Item, ...]

    def walk(self) -> Iterator[KernelInstruction]:
        """Yield every instruction once, including those of loop bodies."""
        for item in self.items:
            if isinstance(item, KernelInstruction):
                yield item
            else:
                yield from item.body.walk()


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelProgram:
    """A traced kernel."""

    name: str  # the name of the Python function
    arguments: tuple[Storage, ...]  # storage of every array argument, in order
    results: tuple[Access, ...]  # the returned tensors, in order
    #: The instructions of all programs of the grid, in the order of execution.
    body: KernelBlock
    #: All storages, arguments included, in order of allocation.
    storages: tuple[Storage, ...]
    registers: int  # the number of registers
    target: str  # the name of the chip
    grid: tuple[int, ...] = ()  # the launch grid, () for one program
    #: The number of ranks that run it, each with its own arrays, joined by collectives
    #: (engine "cc"); 0 for a kernel on its own.
    ranks: int = 0
    #: (program, ordinal) of an instruction -> ordinals of the instructions of the same
    #: program for which it waits because of `depends_on`.
    dependencies: Mapping[tuple[int, int], tuple[int, ...]] = field(
        default_factory=lambda: NO_ATTRIBUTES
    )
    #: Whether it is in the older style, whose compiler spills what does not fit.
    older: bool = False
    #: The line that reads the program number, if the kernel may need a grid: it is
    #: launched without one and never reads the number of programs. Otherwise "".
    wants_grid: str = ""
