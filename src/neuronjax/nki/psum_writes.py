"""Whether a matmul adds to PSUM when the kernel does not say (`accumulate=None`).

"First write overwrites, subsequent writes accumulate" (nki.isa.nc_matmul): what counts
is which elements of the tile were written before, by any instruction, in the order of
the kernel's text; a body of a device loop is read once.
"""

from __future__ import annotations

from neuronjax.ir.kernel import Access, KernelInstruction
from neuronjax.nki.limits.element_maps import ElementNotes
from neuronjax.nki.refusing import refuse


def accumulates(dst: Access, asked: bool | None, notes: ElementNotes) -> bool:
    """Return the flag of a matmul to `dst`.

    Args:
        dst: what the matmul writes.
        asked: the flag that the kernel gives, or None.
        notes: whether elements of PSUM were written, see `note_writes`.
    """
    if asked is not None:
        return bool(asked)
    found = notes.get(dst.storage, False)
    if isinstance(found, bool):
        return found
    written = notes.view(dst)
    if written.all() or not written.any():
        return bool(written.all())
    refuse(
        "nisa.nc_matmul",
        "part of dst was written before and part was not",
        "say accumulate=True or False",
    )


def note_writes(i: KernelInstruction, notes: ElementNotes) -> None:
    """Note what an instruction writes to PSUM."""
    for access in i.outputs:
        if access.storage.memory == "psum" and notes.get(access.storage) is not True:
            notes.write(access, True)
