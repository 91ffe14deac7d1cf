"""One instruction at a time, for a tool that walks a program itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from neuronjax.execution import inputs_outputs
from neuronjax.execution.inputs_outputs import CallContext, check_history
from neuronjax.execution.interpreter import Arrays, Interpretation, first_key
from neuronjax.execution.probes.accumulator import StepAccumulator
from neuronjax.ir.collective_set import Collective
from neuronjax.ir.instruction import Instruction, InstructionProgram
from neuronjax.numerics.random_bits import fold


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

    def execute(self, i: Instruction, operands: Arrays, key: jax.Array) -> Arrays:
        """The results of one instruction that captures nothing.

        Args:
            i: any but a loop or a branch.
            operands: its arrays.
            key: of the block that the instruction is in.
        """
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
