"""Maps of a storage: an entry per element, or per byte once accesses differ in size."""

from __future__ import annotations

import numpy as np

from neuronjax.ir import nki_dtypes as dtypes
from neuronjax.ir.kernel import Access


def element_view(entries: np.ndarray, access: Access) -> tuple[np.ndarray, np.ndarray]:
    """The map, and the part of it that an access without a runtime offset stands for.

    Args:
        entries: as many as the storage has elements, or bytes.
        access: a view of the storage.

    Returns:
        The map, in bytes if the view cannot be seen in elements, and a writable view of
        it; in bytes with one more dimension, the bytes of an element.
    """
    storage = access.storage
    unit, size = dtypes.itemsize(storage.dtype), dtypes.itemsize(access.dtype)
    in_elements = len(entries) == storage.size
    if in_elements and size == unit:
        return entries, _strided(entries, access.offset, access.pattern)
    if in_elements and unit > 1:
        entries = np.repeat(entries, unit)
    pairs = [(stride * size, count) for stride, count in access.pattern]
    return entries, _strided(entries, access.offset * size, (*pairs, (1, size)))


def _strided(
    entries: np.ndarray, offset: int, pattern: tuple[tuple[int, int], ...]
) -> np.ndarray:
    shape = [count for _, count in pattern]
    strides = [stride * entries.itemsize for stride, _ in pattern]
    return np.lib.stride_tricks.as_strided(entries[offset:], shape, strides)
