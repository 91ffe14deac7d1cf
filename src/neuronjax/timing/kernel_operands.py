"""Operands of kernel instructions, described for cost rules, and overlaps of accesses.

An engine sees an access pattern as a `LaneStream`: the memory, the elements per
partition, and whether they are contiguous. A *box* has a range of indices for each
dimension of a storage (a piece of memory); it contains all elements that an access
touches, and perhaps more. If an index is known only at run time, the box is the whole
storage.
"""

from __future__ import annotations

import functools
from math import prod

import numpy as np

from neuronjax.ir import nki_dtypes
from neuronjax.ir.kernel import Access, Storage
from neuronjax.timing.engines.task import LaneStream

#: (first index, last index + 1) of each dimension of a storage; None for all of it.
Box = tuple[tuple[int, int], ...] | None
Pattern = tuple[tuple[int, int], ...]


def numpy_dtype(name: str) -> np.dtype:
    """Return the NumPy dtype with the NKI name `name`; for a packed dtype, the dtype of
    the words into which four elements are packed."""
    return nki_dtypes.info(name).numeric


def row_bytes(s: Storage) -> int:
    return s.free_size * numpy_dtype(s.dtype).itemsize


def operand(access: Access) -> LaneStream:
    """Return an access as the stream that an engine reads or writes."""
    dynamic = access.dynamic is not None
    return _operand(access.storage.memory, access.dtype, access.pattern, dynamic)


@functools.lru_cache(maxsize=65536)
def _operand(memory: str, name: str, pattern: Pattern, is_dynamic: bool) -> LaneStream:
    dtype = numpy_dtype(name)
    partitions = pattern[0][1] if pattern else 1
    moving = [stride for stride, count in pattern[1:] if count > 1]
    stride = moving[-1] if moving else 1
    return LaneStream(
        memory,
        dtype,
        prod(count for _, count in pattern[1:]),
        name,
        partitions,
        stride == 1,
        abs(stride) * dtype.itemsize,
        is_dynamic,
    )


def first_partition(access: Access) -> int:
    free = access.pattern[0][0] if access.pattern else 0
    return access.offset // free if free else 0


def run_bytes(access: Access) -> int:
    """Return the bytes of each contiguous piece of an access. On chip, a piece is part
    of one partition; in HBM, it is part of one row if rows are chosen at run time."""
    chosen = access.dynamic is not None and access.dynamic.kind != "scalar"
    return _run(access.storage.on_chip or chosen, access.dtype, access.pattern)


@functools.lru_cache(maxsize=65536)
def _run(by_row: bool, name: str, pattern: Pattern) -> int:
    run = 1
    for stride, count in reversed(pattern[1:] if by_row else pattern):
        if count > 1 and stride != run:
            break
        run *= count
    return run * numpy_dtype(name).itemsize


def box(access: Access) -> Box:
    """Return a box that contains all elements that an access touches; None for the
    whole storage."""
    storage = access.storage
    if access.dynamic is not None or access.dtype != storage.dtype:
        same = numpy_dtype(access.dtype).itemsize == numpy_dtype(storage.dtype).itemsize
        if access.dynamic is not None or not same:
            return None
    return _box(storage.shape, access.offset, access.pattern)


@functools.lru_cache(maxsize=1 << 18)
def _box(shape: tuple[int, ...], offset: int, pattern: Pattern) -> Box:
    strides = _strides(shape)
    low, rest = [], offset
    for stride in strides:
        place, rest = divmod(rest, stride)
        low.append(place)
    more = [0] * len(shape)
    for stride, count in pattern:
        if count < 2 or stride == 0:
            continue
        if stride < 0:
            return None
        axis = next(n for n, s in enumerate(strides) if s <= stride)
        steps, left = divmod(stride, strides[axis])
        if left:
            return None
        more[axis] += steps * (count - 1)
    return _bounded(shape, low, more)


def _bounded(shape: tuple[int, ...], low: list[int], more: list[int]) -> Box:
    """Return the box of the indices from `low` to `low + more`, both included. If a
    range ends outside its dimension, it becomes the whole dimension, and the range of
    the preceding dimension is extended. Return None if the box is the whole storage."""
    ranges = [(0, 0)] * len(shape)
    for axis in reversed(range(len(shape))):
        high = low[axis] + more[axis]
        if high >= shape[axis] and axis:
            more[axis - 1] += high // shape[axis]
            ranges[axis] = (0, shape[axis])
        else:
            ranges[axis] = (low[axis], high + 1)
    whole = all(r == (0, n) for r, n in zip(ranges, shape, strict=True))
    return None if whole else tuple(ranges)


@functools.cache
def whole_pattern(shape: tuple[int, ...]) -> Pattern:
    """Return (stride, count) of each dimension for an access to a whole storage."""
    return tuple(zip(_strides(shape), shape, strict=True))


@functools.cache
def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    found = [1]
    for size in reversed(shape[1:]):
        found.append(found[-1] * size)
    return tuple(reversed(found))


def overlap(a: Box, b: Box) -> bool:
    if a is None or b is None or a is b:
        return True
    for (a0, a1), (b0, b1) in zip(a, b, strict=True):
        if a1 <= b0 or b1 <= a0:
            return False
    return True


def contains(outer: Box, inner: Box) -> bool:
    if outer is None or outer is inner:
        return True
    if inner is None:
        return False
    for (a0, a1), (b0, b1) in zip(outer, inner, strict=True):
        if b0 < a0 or a1 < b1:
            return False
    return True
