"""A kernel that was traced elsewhere: run, checked and profiled like any other."""

from __future__ import annotations

from typing import Any

from neuronjax.errors import InvalidProgramError
from neuronjax.execution.kernels.running import (
    USUAL_MEMORY,
    FreshMemory,
    KernelPlan,
    prepare,
)
from neuronjax.ir.kernel import KernelProgram
from neuronjax.nki.kernel import Kernel, TracedKernel


class StoredKernel(Kernel):
    """A kernel of which only the trace is there, for arguments of these types."""

    memory = USUAL_MEMORY

    def __init__(self, traced: TracedKernel, seed: int = 0) -> None:
        def kernel(*arguments: Any) -> Any:
            raise InvalidProgramError(
                "a stored kernel in another one, which would have to be traced",
                op=traced.program.name,
                remedy="call the kernel's own function",
            )

        kernel.__name__ = traced.program.name
        super().__init__(kernel, traced.program.target, seed=seed)
        self.older = traced.program.older
        self.stored = traced

    @property
    def program(self) -> KernelProgram:
        """What it does."""
        return self.stored.program

    def in_memory(self, memory: FreshMemory) -> StoredKernel:
        """The same, where memory that nothing wrote holds something else."""
        found = self._with(memory=memory, _specialised={})
        assert isinstance(found, StoredKernel)
        return found

    def prepared(self, program: KernelProgram) -> KernelPlan:
        """How it would be executed, in this memory."""
        return prepare(program, self.memory)

    def trace_call(self, call: Any, devices: int = 0) -> TracedKernel:
        """What is stored.

        Raises:
            InvalidProgramError: the call's arrays have other shapes or dtypes.
        """
        held = self.stored.program.arguments
        given = [(call.shape(n) or (1,), d) for n, d in enumerate(call.dtypes)]
        if given != [(s.shape, s.dtype) for s in held]:
            raise InvalidProgramError(
                f"arguments {given}, of a kernel that was traced for "
                f"{[(s.shape, s.dtype) for s in held]}",
                op=self.stored.program.name,
                remedy="trace it again for these",
            )
        return self.stored
