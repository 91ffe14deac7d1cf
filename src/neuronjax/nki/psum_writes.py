"""The rule by which a matmul adds to PSUM if the kernel leaves `accumulate=None`.

"First write overwrites, subsequent writes accumulate" (nki.isa.nc_matmul). This depends
on which elements of the tile any instruction wrote before, in the order of the kernel's
text; the body of a device loop is read once.
"""

from __future__ import annotations

from neuronjax.ir.kernel import Access, KernelInstruction
from neuronjax.nki.limits.element_maps import ElementNotes
from neuronjax.nki.refusing import refuse


def accumulates(dst: Access, asked: bool | None, notes: ElementNotes) -> bool:
    """Return whether a matmul to `dst` accumulates; `asked` is the kernel's flag, and
    `notes` say which elements of PSUM were written, see `note_writes`."""
    if asked is not None:
        return bool(asked)
    noted = notes.get(dst.storage, False)
    if isinstance(noted, bool):
        return noted
    written = notes.view(dst)
    if written.all() or not written.any():
        return bool(written.all())
    refuse(
        "nisa.nc_matmul",
        "part of dst was written before and part was not",
        "give accumulate=True or False",
    )


def note_writes(i: KernelInstruction, notes: ElementNotes) -> None:
    for access in i.outputs:
        if access.storage.memory == "psum" and notes.get(access.storage) is not True:
            notes.write(access, True)
