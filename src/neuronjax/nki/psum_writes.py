"""Whether a matmul adds to PSUM when the kernel does not say (`accumulate=None`).

"First write overwrites, subsequent writes accumulate" (nki.isa.nc_matmul): what counts
is which elements of the tile were written before, by any instruction, in the order of
the kernel's text; a body of a device loop is read once.
"""

from __future__ import annotations

import numpy as np

from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.ir.kernel import Access, KernelInstruction, Storage
from neuronjax.nki.refusing import refuse

# Per byte whether it was written; None for a storage of which every byte was.
Notes = dict[Storage, np.ndarray | None]


def accumulates(dst: Access, asked: bool | None, notes: Notes) -> bool:
    """The flag of a matmul to `dst`."""
    if asked is not None:
        return bool(asked)
    if dst.storage not in notes:
        return False
    found = _written(dst, notes)
    if found is None or found.all():
        return True
    if not found.any():
        return False
    refuse(
        "nisa.nc_matmul",
        "part of dst was written before and part was not",
        "say accumulate=True or False",
    )


def note_writes(i: KernelInstruction, notes: Notes) -> None:
    """Notes what an instruction writes to PSUM."""
    for access in i.outputs:
        if access.storage.memory != "psum":
            continue
        found = None if _is_whole(access) else _written(access, notes)
        if found is None:
            notes[access.storage] = None
        else:
            found[...] = True


def _is_whole(access: Access) -> bool:
    """Whether a view surely covers its storage: as many elements, none twice."""
    no_repeats = all(stride for stride, count in access.pattern if count > 1)
    same = access.dtype == access.storage.dtype
    return same and no_repeats and access.size == access.storage.size


def _written(access: Access, notes: Notes) -> np.ndarray | None:
    """Per element of a view of PSUM, whether it was written: a view of the notes."""
    storage = access.storage
    size = dtypes.itemsize(storage.dtype)
    if storage not in notes:
        notes[storage] = np.zeros(storage.size * size, np.bool_)
    note = notes[storage]
    if note is None:
        return None
    ratio = dtypes.itemsize(access.dtype)
    strides = [stride * ratio for stride, _ in access.pattern]
    start = note[access.offset * ratio :]
    return np.lib.stride_tricks.as_strided(start, access.shape, strides)
