"""Execute one instruction at a time, for a tool that walks a program itself.

Most of the waiting time of such a tool is XLA, which compiles a program for every
instruction and shape. So NumPy executes constants, movement and exact arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neuronjax.execution import inputs_outputs
from neuronjax.execution.arithmetic import Rule, computed
from neuronjax.execution.inputs_outputs import CallContext, check_history
from neuronjax.execution.interpreter import Interpretation, first_key
from neuronjax.execution.movement import moved
from neuronjax.execution.probes.accumulator import StepAccumulator
from neuronjax.ir.collective_set import Collective
from neuronjax.ir.instruction import Instruction, InstructionProgram
from neuronjax.ir.instruction_set import DmaCopy, Im2col, Memset
from neuronjax.numerics.random_bits import fold

Arrays = Sequence[Any]
#: A function that executes an instruction, given its operands and its key.
Step = Callable[[Arrays, jax.Array], Arrays]


class Stepper:
    """Executes instructions op by op, with the bits of a run.

    The caller derives the keys of stochastic rounding as the interpreter does, with
    `fold`. It also executes inside `np.errstate(all="ignore")`, since Inf and NaN are
    results like others.

    Attributes:
        first_key: the key of main's instructions.
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
        # Steps by the identity of the instruction, which is kept alive.
        self._steps: dict[int, tuple[Instruction, Step]] = {}

    def execute(self, i: Instruction, operands: Arrays, key: jax.Array) -> Arrays:
        """Return the results of one instruction; the caller runs loops and branches.
        `key` is the key of the block that contains the instruction."""
        if id(i) not in self._steps:
            self._steps[id(i)] = (i, self._step(i))
        return self._steps[id(i)][1](operands, key)

    def _step(self, i: Instruction) -> Step:
        rule: Rule | None = None
        if isinstance(i, Memset):
            rule = lambda x: i.value  # noqa: E731
        elif isinstance(i, DmaCopy | Im2col):
            rule = functools.partial(moved, i)
        else:
            rule = computed(i)
        if rule is None:
            return functools.partial(self._executed, i)

        return lambda operands, _: (rule([*map(np.asarray, operands)]),)

    def _executed(self, i: Instruction, operands: Arrays, key: jax.Array) -> Arrays:
        with jax.disable_jit(False):
            return self._run.execute(i, operands, {}, key)

    def exchange(
        self, i: Instruction, operands: Arrays, devices: int, key: jax.Array
    ) -> Arrays:
        """Return the results of a collective, or of a kernel with collectives. Operands
        are [devices, *local shape]; `key` is the key of the surrounding block."""
        with jax.disable_jit(False):
            if self._run.stochastic and i.ordinal:
                key = fold(key, jnp.uint32(i.ordinal))
            if isinstance(i, Collective):
                return self._run.exchange(i, operands, devices, key)
            return self._run.execute(i, operands, {}, key)
