"""What is checked once a kernel is traced: memory, and reads of what nothing wrote."""

from __future__ import annotations

import weakref

from neuronjax.hardware import CoreSpec
from neuronjax.ir.kernel import KernelProgram
from neuronjax.nki.limits.addresses import peak_bytes
from neuronjax.nki.limits.initialised import Initialised, check_results

# Programs that broke no limit, and how they were asked: it takes as long as running.
_How = tuple[CoreSpec, bool, bool]
_PASSED: weakref.WeakKeyDictionary[KernelProgram, set[_How]] = (
    weakref.WeakKeyDictionary()
)


def checked(
    program: KernelProgram,
    core: CoreSpec,
    complete: bool = True,
    older: bool = False,
) -> KernelProgram:
    """The program itself.

    Args:
        program: a traced kernel.
        core: of its target.
        complete: False if the body holds only what one run executed (op by op), where a
            loop without turns leaves nothing.
        older: whether it is of the older style: the compiler moves out what does not
            fit, and engines may compute with what masks left undefined.

    Raises:
        InvalidProgramError: it does not fit SBUF or PSUM, or reads what nothing wrote.
    """
    how = (core, complete, older)
    if how in _PASSED.get(program, ()):
        return program
    Initialised(program, partial=older).check()
    if complete:
        check_results(program)
    peak_bytes(program, core, spills=older)
    _PASSED.setdefault(program, set()).add(how)
    return program
