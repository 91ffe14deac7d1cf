"""Instructions that came with a later core (`InstructionSpec.capability`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuronjax.ir.kernel import KernelInstruction
from neuronjax.ir.nki_instructions import SPECS
from neuronjax.nki.limits.registry import limit, missing

if TYPE_CHECKING:
    from neuronjax.nki.trace import Trace


@limit(*(spec.name for spec in SPECS.values() if spec.capability))
def instruction_exists(i: KernelInstruction, trace: Trace) -> None:
    """The core has the instruction."""
    spec = SPECS[i.name]
    if not spec.capable(trace.core.capabilities):
        raise missing(i, trace, "the instruction", spec.capability, spec.instead)
