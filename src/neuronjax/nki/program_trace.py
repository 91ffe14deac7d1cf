"""`ProgramTrace`: a trace with what Python's own syntax asks of it.

`t[...] = value` and `while register:` become instructions of `isa` and loops, which
stand above `Trace` because they emit into one.
"""

from __future__ import annotations

from typing import Any

from neuronjax.nki.isa.assignment import assign
from neuronjax.nki.loops import while_condition
from neuronjax.nki.registers import VirtualRegister
from neuronjax.nki.tensor import NkiTensor
from neuronjax.nki.trace import Trace


class ProgramTrace(Trace):
    """The trace of one program of a kernel that is being called."""

    def assign(self, view: NkiTensor, value: Any) -> None:
        """Copies a tensor or a number into a view."""
        assign(view, value)

    def condition(self, register: VirtualRegister) -> bool:
        """What a register answers to `while register:`."""
        return while_condition(register)
