"""Strided layouts: what the view methods of a tensor do to shape, strides and offset.

Pure functions on integers, in elements, as NumPy's `as_strided` has them. They refuse
what no strided view can express; the rules about partitions are those of `tensor`.
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
    """Element (i0, i1, ...) is at offset + i0*strides[0] + i1*strides[1] + ..."""

    shape: Shape
    strides: Shape
    offset: int


class Reach(NamedTuple):
    """What a view touches, wherever it begins."""

    pattern: tuple[tuple[int, int], ...]  # (stride, count) of every dimension
    lowest: int  # the element furthest before the first one
    highest: int  # the element furthest behind it


#: Few shapes and strides serve the many views of a kernel: what follows from them is
#: found once, and the views share it.
_KNOWN = 1 << 16


@functools.lru_cache(_KNOWN)
def reach(shape: Shape, strides: Shape) -> Reach:
    """What a view of these touches."""
    pattern = tuple((int(s), int(n)) for s, n in zip(strides, shape, strict=True))
    spans = [stride * (count - 1) for stride, count in pattern]
    lowest = sum(s for s in spans if s < 0)
    return Reach(pattern, lowest, sum(s for s in spans if s > 0))


@functools.lru_cache(_KNOWN)
def row_major_strides(shape: Shape) -> Shape:
    """Strides of a dense array."""
    return tuple(accumulate(reversed(shape[1:]), mul, initial=1))[::-1]


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the elements follow one another without a gap, in row-major order."""
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def slice_dim(x: Layout, dim: int, start: int, count: int, step: int) -> Layout:
    """`count` elements of one dimension from `start` on, every `step`-th."""
    offset = x.offset + start * x.strides[dim]
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
    strides = (*x.strides[:dim], x.strides[dim] * step, *x.strides[dim + 1 :])
    return Layout(shape, strides, offset)


def drop_dim(x: Layout, dim: int) -> Layout:
    """The layout without one of its dimensions, of size one."""
    return Layout(_without(x.shape, dim), _without(x.strides, dim), x.offset)


def insert_dim(x: Layout, dim: int, size: int = 1, stride: int = 0) -> Layout:
    """The layout with one more dimension in front of `dim`."""
    shape = (*x.shape[:dim], size, *x.shape[dim:])
    return Layout(shape, (*x.strides[:dim], stride, *x.strides[dim:]), x.offset)


def _without(values: Shape, dim: int) -> Shape:
    return (*values[:dim], *values[dim + 1 :])


def split_dim(x: Layout, dim: int, sizes: Sequence[int]) -> Layout:
    """One dimension as several, outermost first."""
    strides = tuple(x.strides[dim] * s for s in row_major_strides(tuple(sizes)))
    shape = (*x.shape[:dim], *sizes, *x.shape[dim + 1 :])
    return Layout(shape, (*x.strides[:dim], *strides, *x.strides[dim + 1 :]), x.offset)


def merge_dims(x: Layout, first: int, last: int) -> Layout | None:
    """Dimensions first..last as one, or None where they do not follow one another."""
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
    """The same elements in another shape, or None if no strided view has it.

    As NumPy does it: groups of old and new dimensions of equal products are matched
    from the outside; every group of old ones must be mergeable.
    """
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
    """Dimensions of size one get the stride that a dense array would have there."""
    result = list(strides)
    after = 1
    for d in reversed(range(len(shape))):
        if shape[d] == 1:
            result[d] = after
        after = shape[d] * result[d]
    return tuple(result)
