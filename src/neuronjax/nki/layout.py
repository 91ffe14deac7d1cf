"""Strided layouts: how a tensor's view methods change shape, strides and offset.

The functions are pure, count strides and offsets in elements, and refuse what no
strided view can express. The rules about partitions are in `tensor_view`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from operator import mul
from typing import NamedTuple

Shape = tuple[int, ...]


class Layout(NamedTuple):
    """The positions of elements: (i0, i1, ...) is at offset + i0*strides[0] + ..."""

    shape: Shape
    strides: Shape
    offset: int


class Reach(NamedTuple):
    """The extent of a view, relative to its first element."""

    pattern: tuple[tuple[int, int], ...]  # (stride, count) of every dimension
    lowest: int  # offset of the lowest element, at most 0
    highest: int  # offset of the highest element


#: The views of a kernel have few distinct shapes and strides, so values computed from
#: them are cached.
_KNOWN = 1 << 16


@functools.lru_cache(_KNOWN)
def reach(shape: Shape, strides: Shape) -> Reach:
    """Return the extent of a view with this shape and these strides."""
    pattern = tuple((int(s), int(n)) for s, n in zip(strides, shape, strict=True))
    spans = [stride * (count - 1) for stride, count in pattern]
    lowest = sum(s for s in spans if s < 0)
    return Reach(pattern, lowest, sum(s for s in spans if s > 0))


@functools.lru_cache(_KNOWN)
def row_major_strides(shape: Shape) -> Shape:
    return tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1]


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether the elements are in row-major order without gaps."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def slice_dim(x: Layout, dim: int, start: int, count: int, step: int) -> Layout:
    """Return every `step`-th of `count` elements of one dimension, from `start` on."""
    offset = x.offset + start * x.strides[dim]
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
    strides = (*x.strides[:dim], x.strides[dim] * step, *x.strides[dim + 1 :])
    return Layout(shape, strides, offset)


def drop_dim(x: Layout, dim: int) -> Layout:
    """Return the layout without one of its dimensions, which has size one."""
    return Layout(_without(x.shape, dim), _without(x.strides, dim), x.offset)


def insert_dim(x: Layout, dim: int, size: int = 1, stride: int = 0) -> Layout:
    """Return the layout with a new dimension before `dim`."""
    shape = (*x.shape[:dim], size, *x.shape[dim:])
    return Layout(shape, (*x.strides[:dim], stride, *x.strides[dim:]), x.offset)


def _without(values: Shape, dim: int) -> Shape:
    return (*values[:dim], *values[dim + 1 :])


def split_dim(x: Layout, dim: int, sizes: Sequence[int]) -> Layout:
    """Return the layout with one dimension split into several, outermost first."""
    strides = tuple(x.strides[dim] * s for s in row_major_strides(tuple(sizes)))
    shape = (*x.shape[:dim], *sizes, *x.shape[dim + 1 :])
    return Layout(shape, (*x.strides[:dim], *strides, *x.strides[dim + 1 :]), x.offset)


def merge_dims(x: Layout, first: int, last: int) -> Layout | None:
    """Return the layout with dimensions first..last merged, or None if impossible."""
    shape, strides = x.shape[first : last + 1], x.strides[first : last + 1]
    merged = _merged_stride(shape, strides)
    if merged is None:
        return None
    return Layout(
        (*x.shape[:first], prod(shape), *x.shape[last + 1 :]),
        (*x.strides[:first], merged, *x.strides[last + 1 :]),
        x.offset,
    )


def _merged_stride(shape: Shape, strides: Shape) -> int | None:
    dims = [d for d in zip(shape, strides, strict=True) if d[0] != 1]
    for (_, outer), (size, inner) in pairwise(dims):
        if outer != size * inner:
            return None
    return dims[-1][1] if dims else 1


def reshape(x: Layout, shape: Sequence[int]) -> Layout | None:
    """Return the same elements in another shape, or None if no strided view has it.

    The method is NumPy's: groups of old and new dimensions of equal products are
    matched from the outside, and every group of old ones must be mergeable."""
    if prod(shape) != prod(x.shape):
        return None
    old = [d for d in zip(x.shape, x.strides, strict=True) if d[0] != 1]
    strides: list[int] = []
    at = 0
    new = list(shape)
    position = 0
    while position < len(new):
        if new[position] == 1:
            strides.append(0)
            position += 1
            continue
        end, product = position + 1, new[position]
        taken, total = at, 1
        while total != product:
            if total < product:
                total *= old[taken][0]
                taken += 1
            else:
                product *= new[end]
                end += 1
        group = old[at:taken]
        merged = _merged_stride(tuple(s for s, _ in group), tuple(t for _, t in group))
        if merged is None:
            return None
        strides += [merged * s for s in row_major_strides(tuple(new[position:end]))]
        position, at = end, taken
    return Layout(tuple(new), _unit_strides(new, strides), x.offset)


def _unit_strides(shape: Sequence[int], strides: list[int]) -> Shape:
    """Return the strides, with those of dimensions of size one as in a dense array."""
    result = list(strides)
    after = 1
    for d in reversed(range(len(shape))):
        if shape[d] == 1:
            result[d] = after
        after = shape[d] * result[d]
    return tuple(result)
