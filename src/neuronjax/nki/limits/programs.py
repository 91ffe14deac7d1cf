"""The checks of a traced kernel: memory, and reads of unwritten elements."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from neuronjax.hardware import CoreSpec
from neuronjax.ir.kernel import KernelProgram
from neuronjax.nki.limits.addresses import peak_bytes
from neuronjax.nki.limits.initialised import Initialised, check_results

# Programs that passed `checked`, with its arguments: checking takes as long as a run.
_How = tuple[CoreSpec, bool, bool]
_PASSED: WeakKeyDictionary[KernelProgram, set[_How]] = WeakKeyDictionary()


def checked(
    program: KernelProgram, core: CoreSpec, complete: bool = True, older: bool = False
) -> KernelProgram:
    """Return the program after checking it.

    Args:
        core: the core of the program's target.
        complete: False if the body contains only what one run executed (op by op), so
            that loops without iterations are missing.
        older: whether the kernel is of the older style, whose compiler moves out what
            does not fit and whose engines may compute with elements that masks exclude.

    Raises:
        InvalidProgramError: it does not fit SBUF or PSUM, or reads unwritten elements.
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
