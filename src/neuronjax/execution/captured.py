"""A captured program, which all public functions run or analyse."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from neuronjax.capture.portable import portable_artifact
from neuronjax.capture.trace import Capture
from neuronjax.execution.inputs_outputs import CallContext, Outcome
from neuronjax.execution.transformations import Emulation, abstract
from neuronjax.hardware import Target
from neuronjax.ir.instruction import InstructionProgram
from neuronjax.ir.program import Program
from neuronjax.policy import Policy


@dataclass(frozen=True, kw_only=True)
class CapturedProgram:
    """A function and the types of its arguments, captured for a chip under a policy.

    Attributes:
        emulation: the function of flat arguments, its target and policy.
        inputs: the flat arguments that main takes, arrays or their types.
        outputs: shape, dtype and weak type of every flat result.
        out_tree: the pytree of the results.
        program: the StableHLO program.
    """

    emulation: Emulation
    inputs: Sequence[Any]
    outputs: tuple[jax.ShapeDtypeStruct, ...]
    out_tree: Any
    program: Program

    @functools.cached_property
    def instructions(self) -> InstructionProgram:
        """Return the chip's instructions, lowered at the first access."""
        return self.emulation.lower(self.program)

    def portable(self) -> bytes:
        """Return the program as an artifact that every supported jaxlib reads. Its
        constants may be in other positions than in `program`."""
        with self.emulation.around.inside():
            types = tuple(map(abstract, self.inputs))
            return portable_artifact(
                self.emulation.function, types, self.emulation.names
            )

    def outside(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which instructions run, outside of a mesh."""
        return self.emulation.around.outside()

    def execute(self, context: CallContext, leaves: Sequence[Any]) -> Outcome:
        """Run the instructions on arrays of the types of `inputs`."""
        captured = Capture(self.program, self.out_tree, self.outputs)
        return self.emulation.execute(captured, self.instructions, context, leaves)

    def under(self, target: Target, policy: Policy) -> CapturedProgram:
        """Return the same program for a target, under a policy."""
        emulation = dataclasses.replace(self.emulation, target=target, policy=policy)
        return dataclasses.replace(self, emulation=emulation)
