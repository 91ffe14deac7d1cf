"""Who executes the instructions of one side of a comparison.

An executor runs instructions one at a time and says when two of them are the same
function: what is the same is computed once. The `Emulator` is the project's own; the
double-precision one is in `reference64`. Arrays of the declared dtype `enter` it, and
what it holds, in wider floats if it `is_wide`, leaves it in that dtype by `leave`.
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
    """A key of stochastic rounding, and how it was derived.

    Attributes:
        array: uint32 scalar.
        path: equal paths of equal programs mean equal keys.
    """

    array: Any
    path: tuple[int, ...] = ()

    def folded(self, number: int) -> RoundingKey:
        """As the interpreter derives the key of a call, a loop or an iteration."""
        with jax.disable_jit(False):
            return RoundingKey(
                fold(self.array, jnp.uint32(number)), (*self.path, number)
            )


def stacked_operands(operands: Sequence[Sequence[Any]]) -> list[Any]:
    """Return [devices, *local shape] of every operand."""
    return [np.stack([*map(np.asarray, x)]) for x in zip(*operands, strict=True)]


def by_device(
    i: Instruction, results: Sequence[Any], devices: int
) -> list[list[np.ndarray]]:
    """Return the results of every device; what all of them get is one array."""
    arrays = [np.asarray(x) for x in results]
    alike = isinstance(i, Collective) and is_same_for_all(i, devices)
    if alike:
        return [[x[0, ...] for x in arrays]] * devices
    return [[x[device, ...] for x in arrays] for device in range(devices)]


@dataclass
class Position:
    """Where the walk is: what a hook of an executor can ask.

    Attributes:
        path: the op, with the calls that lead to it.
        iterations: those of the loops around it, the outermost first.
    """

    path: Hashable = None
    iterations: tuple[int, ...] = ()


class Emulator:
    """The engines of the emulated core, op by op."""

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
        """The signature; with the key where numbers are drawn."""
        if i.blocks or isinstance(i, Call):  # blocks belong to one program
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
        """On the engine that the instruction names."""
        return self._stepper.execute(i, operands, key.array)

    def exchange(
        self,
        i: Instruction,
        operands: Sequence[Sequence[Any]],
        key: RoundingKey,
        position: Position,
    ) -> list[list[Any]]:
        """Return what every device gets of an instruction that joins them.

        Args:
            i: a collective, or a kernel with collectives.
            operands: those of every device.
            key: of the block of all devices.
            position: where the walk is.
        """
        stacked = stacked_operands(operands)
        results = self._stepper.exchange(i, stacked, len(operands), key.array)
        return by_device(i, results, len(operands))

    def enter(self, array: Any) -> Any:
        """The emulator holds arrays as they are declared."""
        return array

    def leave(self, array: Any, dtype: Any) -> Any:
        """The emulator holds arrays as they are declared."""
        return array
