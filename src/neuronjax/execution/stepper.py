"""One instruction at a time, for a tool that walks a program itself."""

from __future__ import annotations

import jax

from neuronjax.execution import inputs_outputs
from neuronjax.execution.interpreter import Arrays, Interpretation, first_key
from neuronjax.ir.instruction import Instruction, InstructionProgram


class Stepper:
    """Executes instructions op by op, with the bits of a run.

    The caller derives the keys of stochastic rounding as the interpreter does, with
    `fold`.

    Attributes:
        first_key: of main's instructions.
    """

    def __init__(
        self, program: InstructionProgram, call_index: jax.Array | None = None
    ) -> None:
        with jax.disable_jit(False):
            self.first_key = first_key(program, call_index)
            self._run = Interpretation(program, inputs_outputs.make_zero(True), True)

    def execute(self, i: Instruction, operands: Arrays, key: jax.Array) -> Arrays:
        """The results of one instruction that captures nothing.

        Args:
            i: any but a loop or a branch.
            operands: its arrays.
            key: of the block that the instruction is in.
        """
        with jax.disable_jit(False):
            return self._run.execute(i, operands, {}, key)
