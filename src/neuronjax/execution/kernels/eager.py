"""Op by op: every instruction runs when the kernel's Python code emits it.

The steps are those of a compiled run, each in a jit of its own, on pools with one slot
per storage. So `breakpoint()` and `print(tile)` see values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.execution import host_process
from neuronjax.execution.kernels import faults, steps
from neuronjax.execution.kernels.running import carried, fresh
from neuronjax.execution.kernels.slots import PoolSlot, SlotPool
from neuronjax.execution.kernels.splitting import KernelStep, Splitter
from neuronjax.execution.kernels.steps import InstanceRow, State
from neuronjax.execution.tiles.registry import TileContext
from neuronjax.hardware import CoreSpec
from neuronjax.ir.kernel import Access, KernelInstruction, Register, Storage
from neuronjax.ir.kernel_numerics import USUAL, KernelNumerics
from neuronjax.numerics.exact import opaque, opaque_zero

FEWEST_REGISTERS = 16


class _Numbered(dict[Storage, PoolSlot]):
    """The storages of one instruction, each as slot 0 of a pool. Pools are numbered in
    order of appearance, so equal instructions on other storages are the same step."""

    def __missing__(self, storage: Storage) -> PoolSlot:
        self[storage] = PoolSlot(len(self), 0)
        return self[storage]


class StaticPart(NamedTuple):
    """The static part of an instruction, for which a step is compiled."""

    step: KernelStep
    core: CoreSpec
    numerics: KernelNumerics


# An instruction's row, integers and floats, and the opaque zero.
Row = tuple[Any, Any, jax.Array]


class EagerCall(NamedTuple):
    """An instruction with the arrays of its storages."""

    static: StaticPart
    storages: list[Storage]
    arrays: list[jax.Array]
    registers: Any
    row: Row


class EagerMachine:
    """A machine that executes each instruction when it is emitted, on `core`, with
    random bits from `key`."""

    def __init__(
        self, core: CoreSpec, key: jax.Array, numerics: KernelNumerics = USUAL
    ) -> None:
        host_process.check()
        host_process.make_room()
        self.core, self.key, self.numerics = core, key, numerics
        self._numbered = _Numbered()
        self._splitter = Splitter(self._numbered)
        self._arrays: dict[Storage, jax.Array] = {}
        self._registers = np.zeros(FEWEST_REGISTERS, np.int32)
        with jax.disable_jit(False):
            self.zero = jax.jit(opaque_zero)()

    def load(self, storage: Storage, array: Any) -> None:
        """Fill a storage with an array of its numeric dtype."""
        with jax.disable_jit(False):
            self._arrays[storage] = carried(jnp.asarray(array), storage.dtype)[None]

    def execute(self, instruction: KernelInstruction) -> None:
        faults.check_now(instruction, self)
        call = self.call_of(instruction)
        with jax.disable_jit(False):
            arrays, after = _run(
                call.static, call.arrays, call.registers, call.row, self.key
            )
        self.finish(call, arrays, after)

    def call_of(self, instruction: KernelInstruction) -> EagerCall:
        """Return the arguments of `run_step` for an instruction."""
        self._numbered.clear()
        element = self._splitter.instruction(instruction)
        assert isinstance(element.kind, KernelStep)
        for access in instruction.every_access:
            self._array(access.storage)
        storages = list(self._numbered)  # in order of their numbers
        registers = [r.number for r in _registers_of(instruction)]
        self._make_room(max(registers, default=0))
        return EagerCall(
            StaticPart(element.kind, self.core, self.numerics),
            storages,
            [self._arrays[s] for s in storages],
            self._registers,
            (
                np.array(element.ints, np.int32),
                np.array(element.floats, np.float32),
                self.zero,
            ),
        )

    def finish(self, call: EagerCall, arrays: list[jax.Array], registers: Any) -> None:
        """Store the results of `run_step`."""
        self._arrays.update(zip(call.storages, arrays, strict=True))
        if call.static.step.register:
            self._registers = np.array(registers)

    def read(self, access: Access) -> np.ndarray:
        """Return the current elements of a view."""
        self._numbered.clear()
        ints: list[int] = []
        with jax.disable_jit(False):
            plan = self._splitter.access(access, ints)
            numbered = self._numbered.items()
            state: State = {slot.pool: self._array(s) for s, slot in numbered}
            state["registers"] = jnp.asarray(self._registers)
            value = steps.read_at(plan, ints, state)
        return np.asarray(value)

    def register(self, register: Register) -> int:
        """Return the current value of a register."""
        self._make_room(register.number)
        return int(self._registers[register.number])

    def set_register(self, register: Register, value: int) -> None:
        """Set the induction variable of a device loop."""
        self._make_room(register.number)
        self._registers[register.number] = value

    def value(self, storage: Storage) -> jax.Array:
        """Return all of a storage, in its numeric dtype."""
        with jax.disable_jit(False):
            array = self._array(storage).reshape(storage.shape)
            return steps.as_numeric(array, storage.dtype)

    def _array(self, storage: Storage) -> jax.Array:
        if storage not in self._arrays and storage.initial is not None:
            self.load(storage, storage.initial)
        elif storage not in self._arrays:
            pool = SlotPool(storage.memory, storage.shape, storage.dtype, 1, None)
            with jax.disable_jit(False):
                self._arrays[storage] = fresh(pool)
        return self._arrays[storage]

    def _make_room(self, number: int) -> None:
        length = len(self._registers)
        if number >= length:
            added = max(number + 1 - length, length)
            self._registers = np.pad(self._registers, (0, added))


def _registers_of(i: KernelInstruction) -> Iterator[Register]:
    for operand in i.inputs:
        if isinstance(operand, Register):
            yield operand
    for access in i.every_access:
        if access.dynamic is not None and isinstance(access.dynamic.index, Register):
            yield access.dynamic.index
    if i.writes_register is not None:
        yield i.writes_register


def run_step(
    static: StaticPart,
    arrays: list[jax.Array],
    registers: jax.Array,
    operands: Row,
    key: jax.Array,
) -> tuple[list[jax.Array], jax.Array]:
    """Return the arrays and registers after one instruction."""
    ints, floats, zero = operands
    context = TileContext(zero, static.core, key, **static.numerics._asdict())
    state: State = {**dict(enumerate(arrays)), "registers": registers}
    row = InstanceRow(iter(ints), iter(opaque(floats, zero)))
    steps.execute(static.step, row, state, context)
    return [state[n] for n in range(len(arrays))], state["registers"]


_run = jax.jit(run_step, static_argnums=0)
