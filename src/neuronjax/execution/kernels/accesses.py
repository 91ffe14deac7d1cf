"""How an access is read and written: a static plan, and integers that say where.

The storage is seen as a dense array whose dimensions follow from the strides of the
access: every stride that divides the next larger one is the unit of a dimension. If
every (stride, count) pair then lies within one dimension, the access is a *box*: a
slice, whose starts are among these integers, and a permutation. Any other access is a
*gather* through a static array of element numbers relative to the offset.
"""

from __future__ import annotations

import functools
import itertools
from math import prod
from typing import Any, NamedTuple

import numpy as np

from neuronjax.ir import nki_dtypes as dtypes

Pattern = tuple[tuple[int, int], ...]
_Array = Any  # a NumPy or JAX array


class AccessBox(NamedTuple):
    """A rectangle of a dense array.

    Attributes:
        sizes: the dimensions of the dense array.
        units: for each dimension, the distance in memory between neighbours.
        extents: the size of the window in each dimension.
        steps: for each dimension, n if every n-th element of the window is used.
        source: the dimension of the array for each dimension of the view; None if the
            view's dimension has one element or repeats an element.
        repeats: whether elements repeat (a stride of 0).
    """

    sizes: tuple[int, ...]
    units: tuple[int, ...]
    extents: tuple[int, ...]
    steps: tuple[int, ...]
    source: tuple[int | None, ...]
    shape: tuple[int, ...]
    repeats: bool

    def starts(self, offset: int) -> tuple[int, ...]:
        """Return the index, in the dense array, of the element at an offset."""
        result = []
        for unit in self.units:
            index, offset = divmod(offset, unit)
            result.append(index)
        return tuple(result)

    def fits(self, starts: tuple[int, ...]) -> bool:
        """Return whether the window lies within every dimension."""
        windows = zip(starts, self.extents, self.sizes, strict=True)
        return all(start + extent <= size for start, extent, size in windows)


@functools.lru_cache(1 << 14)
def box(total: int, pattern: Pattern, moving: int = 0) -> AccessBox | None:
    """Return the box of a pattern over a storage of `total` elements in the dtype of
    the access, or None if there is none. `moving` is the stride of a runtime offset,
    which gets a dimension too; 0 for none."""
    pairs = [(s, n) for s, n in pattern if n > 1 and s != 0]
    if any(s < 0 for s, _ in pairs) or total < 1:
        return None
    sizes, units = _dimensions(total, {s for s, _ in pairs} | {abs(moving)} - {0})
    extents, steps = [1] * len(units), [1] * len(units)
    source: list[int | None] = []
    for stride, count in pattern:
        if count == 1 or stride == 0:
            source.append(None)
            continue
        dim = dimension_of(stride, units)
        if extents[dim] != 1:
            return None
        steps[dim] = stride // units[dim]
        extents[dim] = (count - 1) * steps[dim] + 1
        if extents[dim] > sizes[dim]:
            return None
        source.append(dim)
    repeats = any(s == 0 and n > 1 for s, n in pattern)
    return AccessBox(
        sizes,
        units,
        tuple(extents),
        tuple(steps),
        tuple(source),
        tuple(n for _, n in pattern),
        repeats,
    )


def _dimensions(
    total: int, strides: set[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return a dense array's sizes and units; the units are strides if possible."""
    units: list[int] = []
    above = total
    for stride in sorted(strides | {1}, reverse=True):
        if stride < above and above % stride == 0:
            units.append(stride)
            above = stride
    if not units:
        units = [1]
    sizes = [total // units[0]]
    sizes += [a // b for a, b in itertools.pairwise(units)]
    return tuple(sizes), tuple(units)


def dimension_of(stride: int, units: tuple[int, ...]) -> int:
    """Return the dimension along which a positive stride moves; the last unit is 1."""
    return next(d for d, u in enumerate(units) if stride >= u and stride % u == 0)


class AccessPlan(NamedTuple):
    """The static part of an access.

    Attributes:
        dtype: the dtype in which the bits are read.
        stored: the dtype of the storage.
        total: the number of elements of one slot, in `dtype`.
        pattern: the (stride, count) pairs of the access.
        box: how it is sliced; None for a gather.
        kind: the kind of the runtime offset, or "".
        stride, limit, group: those of the runtime offset.
        at: where the runtime offset is read: a plan, "register", or None.
    """

    pool: int
    dtype: str
    stored: str
    total: int
    pattern: Pattern
    box: AccessBox | None
    kind: str = ""
    stride: int = 0
    limit: int = 0
    group: int = 0
    at: AccessPlan | str | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(n for _, n in self.pattern)

    @property
    def static(self) -> Pattern:
        """Return the pattern, with stride 0 for a dimension placed at run time."""
        if self.kind != "vector":
            return self.pattern
        return ((0, self.pattern[0][1]), *self.pattern[1:])


@functools.lru_cache(256)
def relative_elements(pattern: Pattern) -> np.ndarray:
    """Return a pattern's element numbers from its offset, in the view's shape."""
    result = np.zeros((), np.int64)
    for stride, count in pattern:
        result = result[..., None] + np.arange(count, dtype=np.int64) * stride
    return result.astype(np.int32)


def slot_elements(shape: tuple[int, ...], stored: str, dtype: str) -> int:
    """Return the size of a storage of dtype `stored` in elements of `dtype`."""
    return prod(shape) * dtypes.itemsize(stored) // dtypes.itemsize(dtype)


def used_indices(
    index: _Array, kind: str, shape: tuple[int, ...], group: int
) -> _Array:
    """Return the runtime indices that a view uses: a single one ("scalar"), one per
    element of the first dimension ("vector"), or one per element of the first two (an
    indirection, in which `group` partitions share offsets)."""
    if kind == "scalar":
        return index.reshape(())
    if kind == "vector":  # column by column
        return index.reshape(index.shape[0], -1).T.reshape(-1)[: shape[0]]
    return index.reshape(shape[0], -1)[shared_offsets(*shape, group)]


@functools.lru_cache(256)
def shared_offsets(
    partitions: int, count: int, group: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and the columns, each [partitions, count], at which a tensor
    indirection finds its offsets in the index. `group` partitions share offsets: offset
    i is index[i % group, i // group] within the group."""
    partition, number = np.ogrid[:partitions, :count]
    row = partition // group * group + number % group
    return row, np.broadcast_to(number // group, row.shape)
