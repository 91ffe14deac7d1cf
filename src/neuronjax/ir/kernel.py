"""NKI kernels as instructions over partial views: what tracing a kernel leaves.

The tile-sized sister of `ir.instruction`: operands are strided accesses to storages
that are written many times, loops with a run-time count are nested blocks, everything
else is unrolled. Names are those of `nki.isa`. Offsets and strides count elements of
the access's dtype, addresses bytes. `execution.kernels` reads it as arrays, `timing` as
cycles and bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from neuronjax.ir.record import record

# "registers": state that an engine keeps between instructions (accumulators, random
# number generators); not addressable by a kernel.
Memory = Literal["sbuf", "psum", "private_hbm", "shared_hbm", "registers"]
ON_CHIP = frozenset({"sbuf", "psum", "registers"})
DynamicKind = Literal["scalar", "vector", "indirect"]

NO_ATTRIBUTES: Mapping[Any, Any] = MappingProxyType({})


@record(eq=False)
class Storage:
    """A piece of memory, as one `nl.ndarray` allocates it. Compared by identity.

    Attributes:
        number: unique in its kernel, in order of allocation.
        memory: where it lies.
        shape: on chip, partitions first.
        dtype: nki name of the elements, see `ir.nki_dtypes`.
        name: the user's, or "".
        address: (partition, byte offset in the partition) if the user fixed them.
        location: "file:line" of the allocation.
        position: how many instructions were emitted before it was allocated.
        initial: the data it starts with (`nl.shared_constant`), else None.
    """

    number: int
    memory: Memory
    shape: tuple[int, ...]
    dtype: str
    name: str = ""
    address: tuple[int, int] | None = None
    location: str = ""
    position: int = 0
    initial: Any = None

    @property
    def size(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def free_size(self) -> int:
        """Elements per partition."""
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
    """The part of an access that only the run knows.

    Attributes:
        kind: "scalar": index * stride is added to the offset. "vector": element p of
            the index, times stride, replaces the contribution of the first dimension.
            "indirect" (tensor indirection): the second dimension's position j is
            index[j % group, j // group], of each group of partitions on its own.
        index: a register, or an access of integers: one, [P, 1] or [P, K].
        stride: elements that one unit of the index stands for.
        limit: indices from 0 to limit - 1 are legal (of "scalar": of the start).
        group: partitions that share offsets, for "indirect".
    """

    kind: DynamicKind
    index: Register | Access
    stride: int
    limit: int
    group: int = 0


@record()
class Access:
    """Elements of a storage, as one operand of an instruction.

    Element (i0, i1, ...) is number `offset + i0*stride0 + i1*stride1 + ...` of the
    storage in row-major order. On chip the first pair is the partition, its stride the
    free size of the storage. A stride of 0 repeats elements.

    Attributes:
        storage: what is accessed.
        dtype: how its bits are read, mostly `storage.dtype`.
        offset: first element, in elements of `dtype`.
        pattern: (stride, count) of every dimension, outermost first.
        dynamic: what the run adds, or None.
    """

    storage: Storage
    dtype: str
    offset: int
    pattern: tuple[tuple[int, int], ...]
    dynamic: DynamicOffset | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The counts."""
        return tuple(count for _, count in self.pattern)

    @property
    def size(self) -> int:
        """Elements."""
        return prod(count for _, count in self.pattern)


class LoopTurn(NamedTuple):
    """One turn of a loop that was unrolled.

    Attributes:
        loop: a number of the loop; of an inner loop another one in every outer turn.
        turn: from 0 on.
    """

    loop: int
    turn: int


@record(kw_only=True, eq=False)
class KernelInstruction:
    """One call of a `nki.isa` function.

    Attributes:
        name: of the function.
        engine: who executes it.
        outputs: what is written.
        inputs: what is read, in an order that belongs to the instruction.
        parameters: numeric immediates, which may differ from loop turn to loop turn:
            floats are FP32, ints 32 bits.
        attributes: everything static: ops, flags, modes; hashable values.
        reads_outputs: whether the previous contents of the outputs take part.
        location: "file:line" in the kernel.
        ordinal: position in the kernel, its `name=` in the profile.
        label: the user's `name=`, or "".
        program: which program of the grid emitted it.
        writes_register: the register that takes the one result, instead of outputs.
        forms: one letter per operand as the function lists them: "t" a tensor, "r" a
            register (both in `inputs`), "f" or "i" a float or int of `parameters`, "-"
            none.
        loops: the turns of `affine_range` that it is in, outermost first.
        is_open: whether the kernel leaves the engine to the compiler; `engine` is then
            the one whose arithmetic the emulator takes.
    """

    name: str
    engine: str
    outputs: tuple[Access, ...]
    inputs: tuple[Access | Register, ...] = ()
    parameters: tuple[int | float, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=lambda: NO_ATTRIBUTES)
    reads_outputs: bool = False
    location: str = ""
    ordinal: int = 0
    label: str = ""
    program: int = 0
    writes_register: Register | None = None
    forms: str = ""
    loops: tuple[LoopTurn, ...] = ()
    is_open: bool = False

    @property
    def accesses(self) -> tuple[Access, ...]:
        """All operands in memory, outputs first."""
        return (*self.outputs, *(i for i in self.inputs if isinstance(i, Access)))


@dataclass(frozen=True, slots=True, eq=False)
class KernelLoop:
    """`dynamic_range` and `fori_loop`: a counted loop of the device.

    Attributes:
        register: the induction variable.
        start, stop: bounds, `stop` exclusive.
        step: positive.
        body: what is executed every turn.
        location: "file:line" of the loop.
    """

    register: Register
    start: int | Register
    stop: int | Register
    step: int
    body: KernelBlock
    location: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class KernelWhile:
    """`while_loop` and `while register`: runs as long as the register is not 0."""

    condition: Register
    body: KernelBlock
    location: str = ""


Item = KernelInstruction | KernelLoop | KernelWhile


@dataclass(frozen=True, slots=True, eq=False)
class KernelBlock:
    """Items one after another."""

    items: tuple[Item, ...]

    def walk(self) -> Iterator[KernelInstruction]:
        """Every instruction once, those of loop bodies included."""
        for item in self.items:
            if isinstance(item, KernelInstruction):
                yield item
            else:
                yield from item.body.walk()


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelProgram:
    """A traced kernel.

    Attributes:
        name: of the Python function.
        arguments: storage of every array argument, in order.
        results: what the kernel returns, in order.
        body: of all programs of the grid, in the order in which they are executed.
        storages: all of them, arguments included, in order of allocation.
        registers: how many there are.
        target: name of the chip.
        grid: the launch grid, () for one program.
        ranks: how many ranks run it, each with arrays of its own and joined by its
            collectives (engine "cc"); 0 for one alone.
        dependencies: (program, ordinal) -> ordinals of the same program that the kernel
            made it wait for (`depends_on`).
        older: whether it is of the older style, whose compiler does more by itself.
    """

    name: str
    arguments: tuple[Storage, ...]
    results: tuple[Access, ...]
    body: KernelBlock
    storages: tuple[Storage, ...]
    registers: int
    target: str
    grid: tuple[int, ...] = ()
    ranks: int = 0
    dependencies: Mapping[tuple[int, int], tuple[int, ...]] = field(
        default_factory=lambda: NO_ATTRIBUTES
    )
    older: bool = False
