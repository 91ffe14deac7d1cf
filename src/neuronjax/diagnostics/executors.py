"""Executors of the instructions of one side of a comparison.

An executor runs instructions one at a time. Instructions with equal `identity` compute
the same function, so its result for the same arrays is computed once. `Emulator`
executes with the chip's arithmetic; `reference64` has the executor in double precision.
`enter` converts arrays of the declared dtype to the dtype that the executor uses (wider
floats if `is_wide`); `leave` converts back.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.execution.exchange import is_same_for_all
from neuronjax.execution.inputs_outputs import CallContext
from neuronjax.execution.stepper import Stepper
from neuronjax.ir.collective_set import Collective
from neuronjax.ir.instruction import Instruction, InstructionProgram
from neuronjax.ir.instruction_set import Call
from neuronjax.numerics.random_bits import fold


class RoundingKey(NamedTuple):
    """A key of stochastic rounding (uint32), and `path`, the numbers folded into it.

    Keys with equal paths in equal programs are equal."""

    array: Any
    path: tuple[int, ...] = ()

    def folded(self, number: int) -> RoundingKey:
        """Return the key with the number of a call, loop or iteration folded in."""
        with jax.disable_jit(False):
            return RoundingKey(
                fold(self.array, jnp.uint32(number)), (*self.path, number)
            )


def stacked_operands(operands: Sequence[Sequence[Any]]) -> list[Any]:
    """Return each operand, stacked over the devices: [devices, *local shape]."""
    return [np.stack([*map(np.asarray, x)]) for x in zip(*operands, strict=True)]


def by_device(
    i: Instruction, results: Sequence[Any], devices: int
) -> list[list[np.ndarray]]:
    """Return a list of results per device, the same object if all lists are equal."""
    arrays = [np.asarray(x) for x in results]
    if isinstance(i, Collective) and is_same_for_all(i, devices):
        return [[x[0, ...] for x in arrays]] * devices
    return [[x[device, ...] for x in arrays] for device in range(devices)]


@dataclass
class Position:
    """The position of a walk: an op with the calls that lead to it, and the iterations
    of the enclosing loops, the outermost first."""

    path: Hashable = None
    iterations: tuple[int, ...] = ()


class Emulator:
    """An executor on the engines of the emulated core."""

    is_wide = False

    def __init__(
        self, program: InstructionProgram, context: CallContext = CallContext()
    ) -> None:
        self._stepper = Stepper(program, context)
        self.stochastic = program.stochastic
        self.first_key = RoundingKey(self._stepper.first_key, (program.seed,))

    def identity(
        self, i: Instruction, key: RoundingKey, position: Position
    ) -> Hashable:
        """Return a key that is equal for instructions which compute the same function:
        the signature of `i`, and the path of `key` if `i` draws random bits. Executors
        that inject faults also use `position`."""
        if i.blocks or isinstance(i, Call):  # blocks are equal only within one program
            return i.signed, id(self)
        if i.rounding == "stochastic" or i.ordinal:
            return i.signed, i.ordinal, key.path
        return i.signed

    def execute(
        self,
        i: Instruction,
        operands: Sequence[Any],
        key: RoundingKey,
        position: Position,
    ) -> Sequence[Any]:
        return self._stepper.execute(i, operands, key.array)

    def exchange(
        self,
        i: Instruction,
        operands: Sequence[Sequence[Any]],
        key: RoundingKey,
        position: Position,
    ) -> list[list[Any]]:
        """Return the results of `i`, a collective or a kernel with collectives, on
        every device. `operands` has the operands of every device."""
        stacked = stacked_operands(operands)
        results = self._stepper.exchange(i, stacked, len(operands), key.array)
        return by_device(i, results, len(operands))

    def enter(self, array: Any) -> Any:
        """Return the array unchanged: the emulator computes with declared dtypes."""
        return array

    def leave(self, array: Any, dtype: Any) -> Any:
        return array
