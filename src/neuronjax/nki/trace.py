"""The trace of one program of a kernel: the instructions that its Python code makes.

`emit` appends an instruction after `limits` has checked it; in op by op execution the
machine then runs it at once. Blocks of device loops nest. Each thread has at most one
current trace, on which every nl and nisa function works.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from neuronjax.errors import InvalidProgramError, user_line
from neuronjax.execution.kernels.eager import EagerMachine
from neuronjax.execution.kernels.ranks import RankedMachine
from neuronjax.hardware import CoreSpec, Target
from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.ir.kernel import (
    NO_ATTRIBUTES,
    Access,
    Item,
    KernelBlock,
    KernelInstruction,
    LoopTurn,
    Register,
    Storage,
)
from neuronjax.nki import active, psum_writes
from neuronjax.nki.limits import registry as limits
from neuronjax.nki.limits.element_maps import ElementNotes
from neuronjax.nki.limits.shapes import check_partitions
from neuronjax.nki.linking import Barrier
from neuronjax.nki.lockstep import Lockstep, Meeting
from neuronjax.nki.memory import NKIObject, region_name
from neuronjax.nki.refusing import refuse
from neuronjax.nki.registers import VirtualRegister
from neuronjax.nki.tensor import NkiTensor

# What front-end functions may pass as operands.
Operand = NkiTensor | Access | VirtualRegister | int | float | None


# A machine executes instructions while the kernel's Python code runs.
AnyMachine = EagerMachine | RankedMachine


class NkiInstruction(NKIObject):
    """The handle that a nisa function returns."""

    def __init__(self, handle: KernelInstruction) -> None:
        self.handle = handle

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Add scheduling dependencies, which never change values."""
        dependencies, own = current().dependencies, self.handle.ordinal
        after = [p.handle.ordinal for p in producers]
        dependencies[own] = (*dependencies.get(own, ()), *after)
        return self


@dataclass(eq=False)
class Launch:
    """State shared by the programs of a grid while they are traced."""

    programs: int = 1
    ranks: int = 0  # how many ranks run the kernel, or 0 without ranks
    #: The algorithm of the caller's scope, see `neuronjax.collective_algorithm`;
    #: programs run in their own threads, which do not see the scope.
    collective_algorithm: str | None = None
    #: Shared storages of all programs, in order.
    shared: list[Storage] = field(default_factory=list)
    registers: int = 0  # number of registers

    def __post_init__(self) -> None:
        self.lockstep = Lockstep(self.programs)


@dataclass(eq=False)
class Trace:
    """One program of a kernel while it is traced."""

    target: Target
    grid: tuple[int, ...] = ()  # the launch grid, () for one program
    program: int = 0  # this program's number in the grid
    machine: AnyMachine | None = None  # the machine in op by op execution
    launch: Launch = field(default_factory=Launch)
    older: bool = False  # whether the kernel is of the older style (`neuronxcc.nki`)

    storages: list[Storage] = field(default_factory=list)  # everything allocated
    count: int = 0  # number of instructions
    dependencies: dict[int, tuple[int, ...]] = field(default_factory=dict)
    #: Notes of front-end functions, by name.
    notes: dict[str, Any] = field(default_factory=dict)
    #: Results of checking arguments of instructions, see `isa.request`.
    requests: dict[Any, Any] = field(default_factory=dict)
    #: Signatures of the instructions that `limits` has checked.
    checked: set[Hashable] = field(default_factory=set)
    loops: tuple[LoopTurn, ...] = ()  # current iterations of `affine_range` loops
    #: Notes of which elements of PSUM were written, see `psum_writes`.
    psum_notes: ElementNotes = field(default_factory=lambda: ElementNotes(np.bool_))
    joins_ranks: bool = False  # whether it has instructions of `nki.collectives`
    #: For the older style: ordinals of the instructions of `tile[...] = value`, and the
    #: storages that the kernel itself declared.
    assigned: set[int] = field(default_factory=set)
    declared: set[Storage] = field(default_factory=set)

    def __post_init__(self) -> None:
        # Items, and barriers where programs meet.
        self._blocks: list[list[Any]] = [[]]
        self._written: set[Storage] = set()
        self._shared_used = 0
        self._states: dict[str, Storage] = {}

    @property
    def core(self) -> CoreSpec:
        return self.target.core

    def allocate(
        self,
        shape: Sequence[int],
        dtype: Any,
        buffer: Any,
        name: str = "",
        address: tuple[int, int] | None = None,
        initial: Any = None,
    ) -> Storage:
        """Return new memory that obeys `limits`, or memory of an earlier program."""
        memory: Any = region_name(buffer)
        sizes = tuple(map(int, shape))
        dtype = dtypes.as_dtype(dtype)
        line = user_line()
        if not sizes or min(sizes) < 1:
            remedy = "give at least one dimension, all sizes 1 or more"
            refuse("ndarray", f"shape {sizes}", remedy)
        shared = self._found_shared(memory, sizes, dtype)
        if shared is not None:
            return shared
        # Programs of a grid use separate numbers for their storages.
        number = len(self.storages) + (self.program << 24)
        storage = Storage(
            number, memory, sizes, dtype, name, address, line, self.count, initial
        )
        check_partitions(storage, self.core)
        self.storages.append(storage)
        if memory == "shared_hbm":
            self.launch.shared.append(storage)
            self._shared_used += 1
        return storage

    def _found_shared(
        self, memory: str, shape: tuple[int, ...], dtype: str
    ) -> Storage | None:
        """Return the storage that an earlier program allocated at the same point."""
        if memory != "shared_hbm" or self._shared_used >= len(self.launch.shared):
            return None
        storage = self.launch.shared[self._shared_used]
        self._shared_used += 1
        if (storage.shape, storage.dtype) != (shape, dtype):
            refuse(
                "ndarray",
                f"program {self.program} allocates {dtype}{list(shape)} in shared HBM "
                f"where program 0 allocated {storage.dtype}{list(storage.shape)}",
                "allocate shared tensors in the same order in every program",
            )
        if storage not in self.storages:
            self.storages.append(storage)
        return storage

    def state(self, name: str, shape: tuple[int, int], dtype: str) -> Access:
        """Return the state that an engine keeps between instructions, as an operand.

        There is one storage per name, e.g. state("scalar.reduce", (128, 1), "float32"):
        list it among the inputs and outputs of every instruction that reads or writes
        it. A state starts as zeros."""
        if name not in self._states:
            number = len(self.storages) + (self.program << 24)
            initial = np.zeros(shape, dtypes.info(dtype).carrier)
            storage = Storage(
                number, "registers", shape, dtype, name, position=0, initial=initial
            )
            self.storages.append(storage)
            self._states[name] = storage
        lanes, words = shape
        return Access(self._states[name], dtype, 0, ((words, lanes), (1, words)))

    def new_register(self) -> Register:
        self.launch.registers += 1
        return Register(self.launch.registers - 1)

    def append(self, item: Item | Barrier) -> None:
        """Append an item to the innermost open block."""
        self._blocks[-1].append(item)
        if isinstance(item, KernelInstruction):
            self._written.update(a.storage for a in item.outputs)

    def has_written(self, storage: Storage) -> bool:
        """Return whether an instruction or the caller has written to a tensor."""
        return storage.memory not in ("sbuf", "psum") or storage in self._written

    def open_block(self) -> None:
        """Begin a block, which collects everything emitted until `close_block`."""
        self._blocks.append([])

    def close_block(self) -> KernelBlock:
        """End and return the innermost block."""
        return KernelBlock(tuple(self._blocks.pop()))

    @property
    def depth(self) -> int:
        """The number of open blocks, including the outermost."""
        return len(self._blocks)

    def value_text(self, view: NkiTensor) -> str | None:
        """Return a view's elements as text in op by op execution, else None."""
        return str(self.machine.read(view.access())) if self.machine else None

    def skip_shared(self, count: int) -> None:
        """Take over the first `count` shared storages, which hold the arguments."""
        self.storages += self.launch.shared[:count]
        self._shared_used = count

    def meet(self, what: str, payload: Any = None) -> list[Any]:
        """Wait until the other programs of the grid reach the same point, and return
        every program's payload. A program that ends, or waits for something other than
        `what`, e.g. "nisa.core_barrier", is an error."""
        line = user_line()
        self.append(Barrier(line))
        key: Any = self.machine.key if self.machine else None
        met = self.launch.lockstep.meet(self.program, Meeting(what, line, payload))
        if self.machine:  # other programs have used the machine too
            self.machine.key = key
        return [m.payload for m in met]

    def finished(self) -> KernelBlock:
        """Return the block of everything that was emitted."""
        if len(self._blocks) != 1:
            raise InvalidProgramError(
                "the kernel left a device loop before the loop's end",
                remedy="use no break or return in dynamic_range or `while reg:`, "
                "and no `if reg:`",
            )
        return KernelBlock(tuple(self._blocks[0]))


def current() -> Trace:
    """Return the trace on which nl and nisa functions work, if a kernel is running."""
    trace: Any = active.current()
    return trace


@contextlib.contextmanager
def assigning() -> Iterator[None]:
    """Mark instructions emitted in the block as the copies of an assignment."""
    trace = current()
    first = trace.count
    yield
    trace.assigned.update(range(first, trace.count))


def emit(
    name: str,
    engine: str,
    outputs: Sequence[NkiTensor | Access],
    inputs: Sequence[Operand] = (),
    *,
    attributes: Mapping[str, Any] | None = None,
    reads_outputs: bool = False,
    label: str | None = None,
    register: Register | None = None,
    is_open: bool = False,
) -> NkiInstruction:
    """Append an instruction to the current trace.

    Args:
        name: the nki.isa function.
        engine: "tensor", "vector", "scalar", "gpsimd", "sync" or "dma".
        inputs: its operands in the order of its semantics function's parameters:
            tensors, registers, numbers (immediates), None for an absent one.
        attributes: the static arguments, with hashable values.
        reads_outputs: whether the old contents of the outputs are operands.
        label: the user's `name=`.
        register: the register that takes the result, instead of outputs.
        is_open: whether the compiler may choose another engine.

    Raises:
        InvalidProgramError: the instruction breaks a rule of `limits`.
    """
    trace = current()
    operands, parameters, forms = _sorted_operands(inputs)
    instruction = KernelInstruction(
        name=name,
        engine=engine,
        outputs=tuple([_access(t) for t in outputs]),
        inputs=operands,
        parameters=parameters,
        attributes=_frozen(attributes) if attributes else NO_ATTRIBUTES,
        reads_outputs=reads_outputs,
        location=user_line(),
        ordinal=trace.count,
        label=label or "",
        program=trace.program,
        writes_register=register,
        forms=forms,
        loops=trace.loops,
        is_open=is_open,
    )
    limits.check_instruction(instruction, trace.core, trace.checked)
    psum_writes.note_writes(instruction, trace.psum_notes)
    trace.count += 1
    trace.joins_ranks |= engine == "cc"
    trace.append(instruction)
    if trace.machine is not None:
        trace.machine.execute(instruction)
    return NkiInstruction(instruction)


def _frozen(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(attributes, MappingProxyType):
        return attributes
    return MappingProxyType(dict(attributes))


def _access(t: NkiTensor | Access) -> Access:
    return t if isinstance(t, Access) else t.access()


def _sorted_operands(
    inputs: Sequence[Operand],
) -> tuple[tuple[Access | Register, ...], tuple[int | float, ...], str]:
    operands: list[Access | Register] = []
    parameters: list[int | float] = []
    forms = ""
    for value in inputs:
        if isinstance(value, (NkiTensor, Access)):
            operands.append(_access(value))
            forms += "t"
        elif isinstance(value, VirtualRegister):
            assert value.register is not None
            operands.append(value.register)
            forms += "r"
        elif value is None:
            forms += "-"
        elif isinstance(value, bool | int | np.integer):
            parameters.append(int(value))
            forms += "i"
        elif isinstance(value, float | np.floating):
            parameters.append(float(value))
            forms += "f"
        else:
            refuse(None, f"operand {value!r}", "give a tensor, a register or a number")
    return tuple(operands), tuple(parameters), forms
