"""Notes about every element of a storage, such as which instruction wrote it."""

from __future__ import annotations

from typing import Any

import numpy as np

from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.ir.kernel import Access, Storage
from neuronjax.nki.limits.live_ranges import is_whole


class ElementNotes(dict[Storage, Any]):
    """Notes by storage: one note for all elements, or an array with one for each.

    The array has an entry per element, or per byte once accesses differ in element
    size. A storage without a note has the note 0 for all elements."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self._dtype = dtype

    def write(self, access: Access, note: Any) -> None:
        """Set the note of a view's elements."""
        if is_whole(access):
            self[access.storage] = note
        else:
            self.view(access)[...] = note

    def copied(self) -> ElementNotes:
        """Return a copy, which later writes to these notes do not change."""
        other = ElementNotes(self._dtype)
        for storage, note in self.items():
            other[storage] = note.copy() if isinstance(note, np.ndarray) else note
        return other

    def view(self, access: Access) -> np.ndarray:
        """Return a writable array of the notes of a view's elements.

        The access's runtime offset is ignored. If a note belongs to a byte, the array
        has a last dimension for the bytes of an element."""
        storage = access.storage
        entries = self.get(storage, 0)
        if not isinstance(entries, np.ndarray):
            entries = np.full(storage.size, entries, self._dtype)
        unit, size = dtypes.itemsize(storage.dtype), dtypes.itemsize(access.dtype)
        in_elements = len(entries) == storage.size
        if in_elements and size == unit:
            self[storage] = entries
            return _strided(entries, access.offset, access.pattern)
        if in_elements and unit > 1:
            entries = np.repeat(entries, unit)
        self[storage] = entries
        pairs = [(stride * size, count) for stride, count in access.pattern]
        return _strided(entries, access.offset * size, (*pairs, (1, size)))


def _strided(
    entries: np.ndarray, offset: int, pattern: tuple[tuple[int, int], ...]
) -> np.ndarray:
    shape = [count for _, count in pattern]
    strides = [stride * entries.itemsize for stride, _ in pattern]
    return np.lib.stride_tricks.as_strided(entries[offset:], shape, strides)
