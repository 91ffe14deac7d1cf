"""Runtime indices: `t[i_p, offset[0, 0] + i_f]` and `t[rows[i_p, 0], i_f]`.

A tile of one element, next to index arrays, is an offset in one dimension. A tile of
several elements that indexes the first dimension of an HBM tensor selects a row for
each partition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from neuronjax.nki.indexing import DynamicSlice, check_indices, elements_at, strided
from neuronjax.nki.layout import Layout
from neuronjax.nki.legacy.masks import Box
from neuronjax.nki.refusing import refuse
from neuronjax.nki.tensor import NkiTensor


@dataclass(frozen=True, eq=False)
class Offset:
    """An index expression: a tile's value plus an index array."""

    __array_ufunc__ = None  # array + Offset is Offset.__radd__

    index: NkiTensor  # integers in SBUF
    steps: np.ndarray  # the index array added to `index`

    def __add__(self, other: Any) -> Offset:
        return Offset(self.index, self.steps + np.asarray(other))

    __radd__ = __add__


def bounds(key: Any, size: int) -> tuple[int, int, int]:
    """Return the start, stop and step of a slice or `nl.ds`."""
    if isinstance(key, DynamicSlice):
        return int(key.start), int(key.start) + key.size, 1
    return key.indices(size)


@dataclass(frozen=True)
class Rows:
    """A tensor in HBM with one selected row for each partition."""

    row: NkiTensor  # the elements of every row, as if all rows were chosen in order
    index: NkiTensor  # the chosen rows

    def of(self, box: Box | None) -> NkiTensor:
        """Return the view, or the part of it in a mask's box."""
        row, index = self.row, self.index
        if box is not None:
            index = index.slice(0, box.starts[0], box.stops[0])
            for dim, size in enumerate(box.sizes):
                if dim and row.shape[dim] == size != 1:
                    row = row.slice(dim, box.starts[dim], box.stops[dim])
        return row.vector_select(0, index)


def selected(t: NkiTensor, keys: list[Any]) -> NkiTensor | Rows:
    """Return the part of a tensor at keys, one of which is an `Offset`."""
    dynamic = [n for n, k in enumerate(keys) if isinstance(k, Offset)]
    if len(dynamic) != 1:
        refuse("index", f"{len(dynamic)} tiles as indices", "use only one tile")
    key = keys[dynamic[0]]
    slices = any(
        isinstance(k, slice | DynamicSlice) and len(range(*bounds(k, n))) != 1
        for k, n in zip(keys, t.shape, strict=True)
    )
    if key.index.size == 1 and not slices:
        return _moved(t, keys, dynamic[0])
    t, keys = _without_leading(t, keys, dynamic[0])
    if not isinstance(keys[0], Offset) or key.steps.any() or t.storage.on_chip:
        refuse(
            "index",
            f"a tile of {key.index.size} indices of dimension {dynamic[0]}",
            "several indices select only from a tensor in HBM, in the first dimension "
            "that no number indexes; with one index, use no slices",
        )
    return _rows(t, key.index, keys[1:])


def _without_leading(
    t: NkiTensor, keys: list[Any], count: int
) -> tuple[NkiTensor, list[Any]]:
    """Drop the first `count` dimensions and their keys if these are numbers."""
    if t.storage.on_chip or any(np.size(k) != 1 for k in keys[:count]):
        return t, keys
    for key in keys[:count]:
        t = t.select(0, int(np.asarray(key).item()))
    return t, keys[count:]


def _moved(t: NkiTensor, keys: list[Any], dim: int) -> NkiTensor:
    """Return the elements at index arrays, with a runtime offset in dimension `dim`."""
    if t.storage.on_chip and dim == 0:
        refuse("index", "a partition chosen at run time", "index a free dimension")
    arrays = []
    for n, (size, key) in enumerate(zip(t.shape, keys, strict=True)):
        if n == dim:
            key = key.steps
        elif isinstance(key, slice | DynamicSlice):
            key = bounds(key, size)[0]
        arrays.append(key)
    arrays = np.broadcast_arrays(*arrays)
    check_indices(t, arrays, "shorten the index array")
    flat = elements_at(t, arrays)
    view = strided(flat if flat.ndim > 1 else flat.reshape(1, -1))
    limit = t.shape[dim] - int(arrays[dim].max())
    dynamic = t.runtime_offset("index", keys[dim].index, t.strides[dim], limit)
    return t.with_layout(view, dynamic=dynamic)


def _rows(t: NkiTensor, index: NkiTensor, rest: list[Any]) -> Rows:
    """Return the rows of data[indices[i_p, 0], i_f]."""
    arrays = [np.zeros((), np.int64)]
    for size, key in zip(t.shape[1:], rest, strict=True):
        if isinstance(key, slice | DynamicSlice):
            key = np.arange(*bounds(key, size))
        arrays.append(np.asarray(key))
    flat = elements_at(t, np.broadcast_arrays(*arrays))
    view = strided(flat[:1] if flat.ndim > 1 else flat.reshape(1, -1))
    strides = (t.strides[0], *view.strides[1:])
    shape = (t.shape[0], *view.shape[1:])
    return Rows(t.with_layout(Layout(shape, strides, view.offset)), index)
