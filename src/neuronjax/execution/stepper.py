"""One instruction at a time, for a tool that walks a program itself.

What a tool waits for is XLA, which compiles a program for every instruction and shape.
So movement and constants are NumPy's, and of what works element by element there is one
program for all small arrays of about a size: no element depends on where it stands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.execution import inputs_outputs
from neuronjax.execution.inputs_outputs import CallContext, check_history
from neuronjax.execution.interpreter import Interpretation, first_key
from neuronjax.execution.movement import moved
from neuronjax.execution.probes.accumulator import StepAccumulator
from neuronjax.ir.collective_set import Collective
from neuronjax.ir.instruction import Buffer, Instruction, InstructionProgram, View
from neuronjax.ir.instruction_set import (
    Activation,
    Compare,
    DmaCopy,
    Im2col,
    Memset,
    Select,
    TensorCopy,
    TensorScalar,
    TensorTensor,
)
from neuronjax.ir.program import TensorType
from neuronjax.numerics.random_bits import fold

Arrays = Sequence[Any]
#: What executes an instruction, given its operands and its key.
Step = Callable[[Arrays, jax.Array], Arrays]
_ELEMENTWISE = (TensorTensor, TensorScalar, Activation, TensorCopy, Compare, Select)
#: Arrays of more elements are worth a program of their own.
SMALL = 1 << 16


class Stepper:
    """Executes instructions op by op, with the bits of a run.

    The caller derives the keys of stochastic rounding as the interpreter does, with
    `fold`.

    Attributes:
        first_key: of main's instructions.
    """

    def __init__(
        self, program: InstructionProgram, context: CallContext = CallContext()
    ) -> None:
        history = context.amax_history
        with jax.disable_jit(False):
            self.first_key = first_key(program, context.call_index)
            previous = jnp.zeros(program.amax_slots, jnp.float32)
            if history is not None:
                check_history(program, history)
                previous = jnp.max(history, axis=0)
            zero = inputs_outputs.make_zero(True)
            seen = StepAccumulator(None, previous)
            self._run = Interpretation(program, zero, True, (), seen)
        # By the identity of the instruction, which is kept alive.
        self._steps: dict[int, tuple[Instruction, Step]] = {}

    def execute(self, i: Instruction, operands: Arrays, key: jax.Array) -> Arrays:
        """Return the results of one instruction that captures nothing.

        Args:
            i: any but a loop or a branch.
            operands: its arrays.
            key: of the block that the instruction is in.
        """
        if id(i) not in self._steps:
            self._steps[id(i)] = (i, self._step(i))
        return self._steps[id(i)][1](operands, key)

    def _step(self, i: Instruction) -> Step:
        if isinstance(i, Memset):
            return lambda operands, key: (i.value,)
        if isinstance(i, DmaCopy | Im2col):
            return lambda operands, key: (moved(i, operands),)
        shape = i.results[0].type.shape if i.results else ()
        size = int(np.prod(shape))
        is_sized = isinstance(i, _ELEMENTWISE) and 0 < size <= SMALL
        if not is_sized or i.rounding == "stochastic" or i.label == "host":
            return lambda operands, key: self._executed(i, operands, key)
        room = _room(size)
        like = _resized(i, shape, room)

        def step(operands: Arrays, key: jax.Array) -> Arrays:
            given = [
                _fitted(np.asarray(x), room) if v.type.shape == shape else x
                for x, v in zip(operands, i.operands, strict=True)
            ]
            [result] = self._executed(like, given, key)
            return (np.asarray(result)[:size].reshape(shape),)

        return step

    def _executed(self, i: Instruction, operands: Arrays, key: jax.Array) -> Arrays:
        with jax.disable_jit(False):
            return self._run.execute(i, operands, {}, key)

    def exchange(
        self, i: Instruction, operands: Arrays, devices: int, key: jax.Array
    ) -> Arrays:
        """Return the results of an instruction that joins the devices of a mesh.

        Args:
            i: a collective, or a kernel with collectives.
            operands: [devices, *local shape] each.
            devices: how many there are.
            key: of the block that the instruction is in.
        """
        with jax.disable_jit(False):
            if self._run.stochastic and i.ordinal:
                key = fold(key, jnp.uint32(i.ordinal))
            if isinstance(i, Collective):
                return self._run.exchange(i, operands, devices, key)
            return self._run.execute(i, operands, {}, key)


def _room(size: int) -> int:
    """Return the size of the arrays that hold so many elements: a power of two, of four
    where they are so small that nobody sees what more elements cost."""
    bits = max(6, (size - 1).bit_length())
    return 1 << (bits + bits % 2 if bits < 12 else bits)


def _resized(i: Instruction, shape: tuple[int, ...], room: int) -> Instruction:
    """Return an instruction of so many elements in a row."""

    def sized(kind: TensorType) -> TensorType:
        return TensorType((room,), kind.dtype) if kind.shape == shape else kind

    return dataclasses.replace(
        i,
        operands=tuple(
            View(Buffer(n, sized(v.type))) for n, v in enumerate(i.operands)
        ),
        results=tuple(Buffer(b.number, sized(b.type)) for b in i.results),
    )


def _fitted(x: np.ndarray, room: int) -> np.ndarray:
    """Return the elements in a row; the last one stands where there are no more."""
    out = np.empty(room, x.dtype)
    out[: x.size].reshape(x.shape)[...] = x
    out[x.size :] = out[x.size - 1]
    return out
