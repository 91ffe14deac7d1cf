"""Index expressions of a tensor: ints, slices, `...`, `nl.ds`, registers, index arrays.

The rules are NumPy's, except for integers (NKI Language Guide, "Tensor Indexing"): on
chip the partition dimension stays with size one and the result has at least two
dimensions; in HBM it has at least one. Arrays of indices (`nl.arange(128)[:, None]`)
must be equivalent to a strided view.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from neuronjax.ir.instruction import unrepeated
from neuronjax.ir.record import record
from neuronjax.nki import layout
from neuronjax.nki.layout import Layout
from neuronjax.nki.refusing import refuse
from neuronjax.nki.registers import VirtualRegister
from neuronjax.nki.tensor_view import TensorView, View, sliced_count


@record()
class DynamicSlice:
    """`nl.ds(start, size)`, where the start is an int, register or tensor."""

    start: Any
    size: int


def indexed(t: View, key: Any) -> View:
    given = key if isinstance(key, tuple) else (key,)
    if t.dynamic is None and len(given) <= t.ndim:
        direct = _by_numbers(t, given)
        if direct is not None:
            return t.with_layout(direct)
    keys = _expanded(t, given)
    if any(isinstance(k, np.ndarray) for k in keys):
        return _by_arrays(t, keys)
    view, dim, dropped = t, 0, []
    for entry in keys:
        if entry is None:
            view = view.expand_dim(dim)
        elif isinstance(entry, slice):
            view = _sliced(view, dim, entry)
        elif isinstance(entry, DynamicSlice):
            view = _dynamic(view, dim, entry)
        else:
            view = _one(view, dim, entry)
            dropped.append(dim)
        dim += 1
    return view.with_layout(_without(view.layout, dropped, t.storage.on_chip))


def _by_numbers(t: TensorView, keys: tuple[Any, ...]) -> Layout | None:
    """Return the layout of `t[keys]`, or None if a key is no number, slice or `nl.ds`.
    This is a shortcut, only for speed."""
    offset, shape, strides = t.offset, list(t.shape), list(t.strides)
    dropped = []
    for dim, key in enumerate(keys):
        kind, size = type(key), shape[dim]
        if kind is DynamicSlice and type(key.start) is int:
            start, stop, step = key.start, key.start + key.size, 1
        elif kind is slice and type(key.start) in _BOUNDS and type(key.stop) in _BOUNDS:
            start, stop, step = key.indices(size)
        elif kind is int and -size <= key < size:
            start, step = key % size, 1
            stop = start + 1
            dropped.append(dim)
        else:
            return None
        shape[dim] = sliced_count(dim, size, start, stop, step)
        offset += start * strides[dim]
        strides[dim] *= step
    view = Layout(tuple(shape), tuple(strides), offset)
    return _without(view, dropped, t.storage.on_chip) if dropped else view


#: Types of slice bounds that are known when the kernel is traced.
_BOUNDS = (int, type(None))


def _expanded(t: TensorView, keys: tuple[Any, ...]) -> list[Any]:
    """Return one key per dimension: a whole slice for `...` and for missing keys."""
    consumed = sum(k is not None and k is not Ellipsis for k in keys)
    ellipses = [n for n, k in enumerate(keys) if k is Ellipsis]
    if consumed > t.ndim or len(ellipses) > 1:
        refuse("index", f"{keys} on shape {t.shape}", f"give at most {t.ndim} indices")
    fill = [slice(None)] * (t.ndim - consumed)
    if not ellipses:
        return [*keys, *fill]
    at = ellipses[0]
    return [*keys[:at], *fill, *keys[at + 1 :]]


def _sliced(t: View, dim: int, entry: slice) -> View:
    if any(isinstance(v, VirtualRegister) for v in (entry.start, entry.stop)):
        refuse("index", "a register as a slice bound", "use nl.ds(register, size)")
    start, stop, step = entry.indices(t.shape[dim])
    if (start, stop, step) == (0, t.shape[dim], 1):
        return t
    return t.slice(dim, start, stop, step)


def _dynamic(t: View, dim: int, entry: DynamicSlice) -> View:
    if isinstance(entry.start, VirtualRegister | TensorView):
        return t.dynamic_slice(dim, entry.start, entry.size)
    return t.slice(dim, int(entry.start), int(entry.start) + entry.size)


def _one(t: View, dim: int, entry: Any) -> View:
    """Return the elements at index `entry` of `dim`, which keeps size one."""
    if isinstance(entry, VirtualRegister | TensorView):
        return t.dynamic_slice(dim, entry, 1)
    index = int(entry)
    index = index + t.shape[dim] if index < 0 else index
    if not 0 <= index < t.shape[dim]:
        refuse(
            "index",
            f"index {entry} of dimension {dim} of size {t.shape[dim]}",
            f"use {-t.shape[dim]} to {t.shape[dim] - 1}",
        )
    return t.slice(dim, index, index + 1)


def _without(view: Layout, dims: list[int], on_chip: bool) -> Layout:
    """Return the layout without `dims`. On chip, the partition dimension and at least
    two dimensions remain; in HBM, at least one remains."""
    dims = [d for d in dims if not (on_chip and d == 0)]
    fewest, rank = 2 if on_chip else 1, len(view.shape)
    if rank - len(dims) < fewest:
        dims = dims[: max(rank - fewest, 0)]
    for dim in reversed(dims):
        view = layout.drop_dim(view, dim)
    return view


def _by_arrays(t: View, keys: list[Any]) -> View:
    """Return a view of the elements at index arrays or numbers, one per dimension."""
    if t.dynamic is not None or not all(
        isinstance(k, np.ndarray | int | np.integer) for k in keys
    ):
        refuse("index", "index arrays beside a slice or a register", "use one kind")
    arrays = [as_array(k, size) for k, size in zip(keys, t.shape, strict=True)]
    try:
        common_shape(arrays)
    except ValueError:
        shapes = [a.shape for a in arrays]
        refuse("index", f"index arrays of shapes {shapes}", "use shapes that broadcast")
    return t.with_layout(layout_at(t, arrays, "mask or shorten the index array"))


class IndexRange(NamedTuple):
    """The first element, the bounds and the steps of an index array."""

    first: int
    lowest: int
    highest: int
    #: How much the index grows along each axis; None if it is not affine.
    steps: tuple[int, ...] | None


def layout_at(t: TensorView, arrays: Sequence[np.ndarray], remedy: str) -> Layout:
    """Return the layout of the elements that index arrays select, one array per
    dimension.

    The arrays broadcast to one shape. If each array is affine by itself, no array of
    the whole shape is made."""
    shape = common_shape(arrays)
    offset, steps = t.offset, []
    for dim, array in enumerate(arrays):
        index = _checked(t, dim, array, remedy)
        offset += index.first * t.strides[dim]
        steps.append(index.steps)
    if None in steps:
        return strided(elements_at(t, np.broadcast_arrays(*arrays)))
    return Layout(shape, _strides(shape, t.strides, tuple(steps)), offset)


@functools.lru_cache(maxsize=8192)
def _strides(
    shape: tuple[int, ...], strides: tuple[int, ...], steps: tuple[tuple[int, ...], ...]
) -> tuple[int, ...]:
    """Return a view's strides; `steps[d]` is how much the index of dimension d of the
    tensor grows along each axis."""
    result = [0] * len(shape)
    for stride, grown in zip(strides, steps, strict=True):
        for axis, step in enumerate(grown, len(shape) - len(grown)):
            result[axis] += step * stride
    return tuple(s if n > 1 else 1 for s, n in zip(result, shape, strict=True))


def common_shape(arrays: Sequence[np.ndarray]) -> tuple[int, ...]:
    """Return the shape to which arrays broadcast, or raise a ValueError."""
    return _common_shape(tuple([a.shape for a in arrays]))


@functools.lru_cache(maxsize=8192)
def _common_shape(shapes: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Return `numpy.broadcast_shapes(*shapes)`, which is slower as it makes arrays."""
    rank = max(map(len, shapes))
    sizes = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if size != 1 and sizes[axis] not in (1, size):
                raise ValueError(f"axis {axis} has sizes {sizes[axis]} and {size}")
            if size != 1:
                sizes[axis] = size
    return tuple(sizes)


def check_indices(t: TensorView, arrays: Sequence[np.ndarray], remedy: str) -> None:
    """Refuse index arrays, one per dimension, that reach beyond the tensor."""
    for dim, array in enumerate(arrays):
        _checked(t, dim, array, remedy)


def _checked(t: TensorView, dim: int, array: np.ndarray, remedy: str) -> IndexRange:
    if array.size == 0:
        refuse("index", f"no index of dimension {dim}", "give at least one index")
    index = _index_range(array)
    if index.lowest < 0 or index.highest >= t.shape[dim]:
        reached = f"indices {index.lowest} to {index.highest}"
        refuse("index", f"{reached} of dimension {dim} of size {t.shape[dim]}", remedy)
    return index


#: Larger arrays are not cached: their bytes would fill the memory.
_REMEMBERED_BYTES = 8192


_INT64 = np.dtype(np.int64)


def _index_range(array: np.ndarray) -> IndexRange:
    shape, count = array.shape, array.size
    if array.dtype is _INT64 and (count == 1 or count in shape):
        first = array.item(0)
        step = array.item(1) - first if count > 1 else 0
        if array.tobytes() == _ramp(first, step, count):
            return _range_of_ramp(first, step, shape)
    if 0 in array.strides:
        array = unrepeated(array)
    if array.nbytes > _REMEMBERED_BYTES:
        return _read_range(array)
    return _known_range(array.shape, array.dtype, array.tobytes())


@functools.lru_cache(maxsize=512)
def _ramp(first: int, step: int, count: int) -> bytes:
    """Return the bytes of first + step * arange(count). Nearly every index array has
    such bytes, since all its axes but one have size one; comparing bytes is faster
    than comparing elements."""
    return (first + step * np.arange(count, dtype=np.int64)).tobytes()


@functools.lru_cache(maxsize=8192)
def _range_of_ramp(first: int, step: int, shape: tuple[int, ...]) -> IndexRange:
    last = first + step * (prod(shape) - 1)
    steps = tuple(step if size > 1 else 0 for size in shape)
    return IndexRange(first, min(first, last), max(first, last), steps)


@functools.lru_cache(maxsize=8192)
def _known_range(shape: tuple[int, ...], dtype: np.dtype, data: bytes) -> IndexRange:
    """Return the range of the array with these bytes; loops make equal arrays."""
    return _read_range(np.frombuffer(data, dtype).reshape(shape))


def _read_range(array: np.ndarray) -> IndexRange:
    bounds = int(array.flat[0]), int(array.min()), int(array.max())
    return IndexRange(*bounds, _steps(array))


def _steps(array: np.ndarray) -> tuple[int, ...] | None:
    """Return how much an index grows along every axis, or None if it is not affine."""
    steps = [0] * array.ndim
    for axis, size in enumerate(array.shape):
        if size > 1:
            grown = np.diff(array, axis=axis)
            steps[axis] = int(grown.flat[0])
            if not (grown == steps[axis]).all():
                return None
    return tuple(steps)


def elements_at(t: TensorView, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the numbers of the elements at index arrays, one array per dimension."""
    pairs = zip(arrays, t.strides, strict=True)
    return np.asarray(sum(a.astype(np.int64) * s for a, s in pairs)) + t.offset


def as_array(key: Any, size: int) -> np.ndarray:
    """Return an index, or an array of them; a negative number counts from the end."""
    array = np.asarray(key)
    return np.where(array < 0, array + size, array) if array.ndim == 0 else array


def strided(elements: np.ndarray) -> Layout:
    """Return the layout whose element numbers are `elements`."""
    first = int(elements.flat[0])
    strides = []
    for dim, size in enumerate(elements.shape):
        second = (0,) * dim + (1,) + (0,) * (elements.ndim - dim - 1)
        strides.append(int(elements[second]) - first if size > 1 else 1)
    grid = np.indices(elements.shape, sparse=True)
    expected = first + sum(g * s for g, s in zip(grid, strides, strict=True))
    if not np.array_equal(np.broadcast_to(expected, elements.shape), elements):
        refuse("index", "index arrays that are not affine", "use t.ap or a gather")
    return Layout(elements.shape, tuple(strides), first)
