"""A kernel that was traced elsewhere, and is run, checked and profiled like any
other."""

from __future__ import annotations

from typing import Any

from neuronjax.errors import InvalidProgramError
from neuronjax.execution.kernels import running
from neuronjax.ir.kernel import KernelProgram
from neuronjax.nki.kernel import Kernel, TracedKernel


class StoredKernel(Kernel):
    """A kernel with only a trace and no function, for arguments of the traced types."""

    memory = running.USUAL_MEMORY

    def __init__(self, traced: TracedKernel, seed: int = 0) -> None:
        def kernel(*arguments: Any) -> Any:
            raise InvalidProgramError(
                "another kernel calls a stored kernel, which has no Python function",
                op=traced.program.name,
                remedy="call the function from which the stored kernel was made",
            )

        kernel.__name__ = traced.program.name
        super().__init__(kernel, traced.program.target, seed=seed)
        self.older = traced.program.older
        self.stored = traced

    @property
    def program(self) -> KernelProgram:
        return self.stored.program

    def in_memory(self, memory: running.FreshMemory) -> StoredKernel:
        """Return the same kernel with other initial contents of its memory."""
        return self._with(memory=memory, _specialised={})

    def prepared(self, program: KernelProgram) -> running.KernelPlan:
        return running.prepare(program, self.memory)

    def trace_call(self, call: Any, devices: int = 0) -> TracedKernel:
        """Return the stored trace; refuse arrays of other shapes or dtypes."""
        stored = [(s.shape, s.dtype) for s in self.program.arguments]
        given = [(call.shape(n) or (1,), d) for n, d in enumerate(call.dtypes)]
        if given != stored:
            raise InvalidProgramError(
                f"the arguments are {given}, but the kernel was traced for {stored}",
                op=self.program.name,
                remedy="trace the kernel again for these arguments",
            )
        return self.stored
