"""Distances of numbers from their reference: sums, counts and maxima.

Compiled code compares finite FP32 numbers in one pass, many times as fast as NumPy.
NumPy compares other arrays, in blocks that fit a cache. Several threads share the work
on a large array.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import math
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from enum import IntEnum, auto
from typing import TypeVar

import numpy as np

from neuronjax.diagnostics.differences import alike
from neuronjax.numerics.host_kernels import choice
from neuronjax.numerics.host_kernels.figures import MAXIMA, Distance, Told

# Elements per block: too few for a BLAS to start threads for a dot product.
BLOCK_ELEMENTS = 1 << 13
#: Elements per task of a thread, and the largest number of threads.
PART_ELEMENTS = 1 << 17
MAX_THREADS = 8
_Part = TypeVar("_Part")
_EXPONENT_FIELD = np.uint64(0x7FF0 << 48)


class Broken(IntEnum):
    """Counts of elements with Inf or NaN, which the sums of `Distance` leave out.

    `CHANGED` counts elements in which an Inf or NaN differs from the reference,
    `CEASED` elements that are finite in only one of the arrays. `KNOWN2` is the sum of
    squares of the reference wherever it is finite."""

    ACTUAL = len(Distance)
    REFERENCE = auto()
    NAN = auto()
    CHANGED = auto()
    CEASED = auto()
    KNOWN2 = auto()


Figures = Mapping[Distance | Broken, float]
_NOTHING: Figures = dict.fromkeys((*Distance, *Broken), 0.0)
_TOLD, _FOUND = tuple(Told), tuple(Distance)


def figures(
    actual: np.ndarray, reference: np.ndarray, setting: Mapping[Told, float]
) -> Figures:
    """Return the distances of two arrays, and counts, that `setting` requests.

    Args:
        actual: array of the declared dtype.
        reference: array of the same or a wider dtype.
        setting: parameters by name, see `Told`; a distance whose parameter is missing
            is not computed. If `PRECISION` is missing, a ULP is 1, as for integers.
    """

    def part(a: np.ndarray, r: np.ndarray) -> Figures:
        found = distances(a, r, setting)
        if found is not None:
            return {**_NOTHING, **found, Broken.KNOWN2: found[Distance.REFERENCE2]}
        with np.errstate(all="ignore"):
            return _total(_of_block(x, y, setting) for x, y in blocks_of(a, r))

    def measured_now() -> Figures:
        # The order of elements does not matter, so they are read as they are in memory.
        order = sorted(range(actual.ndim), key=lambda n: -actual.strides[n])
        parts = in_parts(part, actual.transpose(order), reference.transpose(order))
        return parts[0] if len(parts) == 1 else _total(parts)

    known = _KNOWN.get()
    if known is None or actual.size <= BLOCK_ELEMENTS:
        return measured_now()
    pair = id(actual), id(reference)
    if pair not in known:
        # The entry is removed when an array is freed, before another array gets its id.
        arrays, ended = (actual, reference), lambda _: known.pop(pair, None)
        known[pair] = [], [weakref.ref(x, ended) for x in arrays]
    measured, _ = known[pair]
    for of, found in measured:
        if _includes(of, setting):
            return found
    found = measured_now()
    measured.append((setting, found))
    return found


def _includes(known: Mapping[Told, float], setting: Mapping[Told, float]) -> bool:
    same_floor = known.get(Told.FLOOR) == setting.get(Told.FLOOR)
    return same_floor and setting.items() <= known.items()


#: Ids of two large arrays -> their distances, for several settings, and weak references
#: to both arrays. None outside of `remembering`.
_KNOWN: ContextVar[dict[tuple[int, int], tuple[list, list]] | None] = ContextVar(
    "known", default=None
)


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Measure each pair of large arrays only once inside this context. Arrays must not
    be written to inside the context. This saves time in a loop, which passes most
    arrays on to its next iteration."""
    before = _KNOWN.set({})
    try:
        yield
    finally:
        _KNOWN.reset(before)


def _total(parts: Iterable[Figures]) -> Figures:
    total = dict(_NOTHING)
    for part in parts:
        for figure, value in part.items():
            known = total[figure]
            total[figure] = max(known, value) if figure in MAXIMA else known + value
    return total


def distances(
    actual: np.ndarray, reference: np.ndarray, setting: Mapping[Told, float]
) -> Mapping[Distance, float] | None:
    """Return the distances of flat arrays by compiled code; None if compiled code
    cannot be used, or if a sum of squares is not finite.

    A parameter that is missing in `setting` is 0."""
    if actual.dtype != np.float32 or reference.dtype.kind != "f":
        return None
    if not choice.usable():
        return None
    call, lanes = _kernel()
    ours = np.ascontiguousarray(actual)
    theirs = np.ascontiguousarray(reference, dtype=np.float64)
    told = np.array([setting.get(name, 0.0) for name in _TOLD])
    lists = np.empty((len(_FOUND), lanes))
    call(*(x.ctypes.data for x in (ours, theirs, told, lists)), ours.size)
    with np.errstate(invalid="ignore"):  # Inf - Inf is NaN, checked below
        totals = lists.sum(axis=1).tolist()
    if not math.isfinite(totals[Distance.ERROR2] + totals[Distance.REFERENCE2]):
        return None
    for figure in MAXIMA:
        totals[figure] = float(lists[figure].max())
    return dict(zip(_FOUND, totals, strict=True))


@functools.cache
def _kernel() -> tuple[Callable[..., None], int]:
    from neuronjax.numerics.host_kernels import compiled, distance_kernel  # slow import

    lanes = compiled.lanes() // 2
    where = compiled.address(
        distance_kernel.NAME, lambda module: distance_kernel.write(module, lanes)
    )
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64)
    return kind(where), lanes


# -- by NumPy --------------------------------------------------------------------------


def _of_block(
    actual: np.ndarray, reference: np.ndarray, setting: Mapping[Told, float]
) -> Figures:
    a, r = (x.astype(np.float64, copy=False) for x in (actual, reference))
    found: dict[Distance | Broken, float] = {}
    known, error = r, a - r
    error2 = float(np.dot(error, error))
    if not math.isfinite(error2):
        known, a, r, error = _finite(a, r, found)
        error2 = float(np.dot(error, error))
    found[Distance.ERROR2] = error2
    found[Distance.REFERENCE2] = float(np.dot(r, r))
    is_whole = known is r
    known2 = found[Distance.REFERENCE2] if is_whole else float(np.dot(known, known))
    found[Broken.KNOWN2] = known2
    far = np.abs(error, out=error)
    if Told.STEP in setting:
        found[Distance.ACTUAL2] = float(np.dot(a, a))
        found[Distance.PRODUCT] = float(np.dot(a, r))
        figure, differs = _different(actual, reference)
        found[figure] = _count(differs)
        steps = far / _spacing(a, r, setting) if Told.PRECISION in setting else far
        found[Distance.ULP] = float(steps.sum())
        found[Distance.ULP_MOST] = float(steps.max(initial=0.0))
    if Told.LARGEST in setting:
        found |= _range(actual, reference, np.abs(known), setting)
    if Told.LOST in setting and far.any():
        allowed = np.maximum(np.abs(known), setting.get(Told.FLOOR, 0.0))
        found[Distance.LOST] = _count(far > allowed * setting[Told.LOST])
    return found


def _finite(
    a: np.ndarray, r: np.ndarray, found: dict[Distance | Broken, float]
) -> tuple[np.ndarray, ...]:
    finite, known = np.isfinite(a), np.isfinite(r)
    usable = finite & known
    counted = {
        Broken.ACTUAL: ~finite,
        Broken.REFERENCE: ~known,
        Broken.NAN: np.isnan(a),
        Broken.CHANGED: ~usable & ~alike(a, r),
        Broken.CEASED: finite != known,
    }
    found |= {figure: _count(where) for figure, where in counted.items()}
    pairs = (known, r), (usable, a), (usable, r), (usable, a - r)
    return tuple(np.where(where, x, 0.0) for where, x in pairs)


def _different(
    actual: np.ndarray, reference: np.ndarray
) -> tuple[Distance, np.ndarray]:
    """Return the `Distance` that counts differing elements, and the mask of these."""
    if actual.dtype == reference.dtype:
        figure, differs = Distance.DIFFERENT_BITS, _bits(actual) != _bits(reference)
    else:
        figure, differs = Distance.DIFFERENT, actual != reference.astype(actual.dtype)
    if actual.dtype.kind in "iub":
        return figure, differs
    return figure, differs & ~(np.isnan(actual) & np.isnan(reference))


def _spacing(a: np.ndarray, r: np.ndarray, setting: Mapping[Told, float]) -> np.ndarray:
    """Return the spacing of the format's numbers at the larger magnitude of `a` and
    `r`. It is 2^(exponent - mantissa_bits), and constant below the smallest normal
    number. Clearing sign and mantissa of a float64 number leaves 2^exponent."""
    power = a.view(np.uint64) & _EXPONENT_FIELD
    other = r.view(np.uint64) & _EXPONENT_FIELD
    power, other = power.view(np.float64), other.view(np.float64)
    np.maximum(power, other, out=power)
    np.maximum(power, setting[Told.STEP], out=power)
    power /= setting[Told.PRECISION]
    return power


def _range(
    a: np.ndarray, r: np.ndarray, size: np.ndarray, setting: Mapping[Told, float]
) -> Figures:
    """Return the largest `size`, and counts of zeros and of numbers out of range."""
    is_zero, limit = a == 0, setting[Told.LARGEST]
    found: dict[Distance | Broken, float] = {
        Distance.SIZE_MOST: float(size.max(initial=0.0)),
        Distance.NOTHING: _count(is_zero),
    }
    if found[Distance.NOTHING]:
        found[Distance.ZEROS] = _count(is_zero & (r != 0))
    found[Distance.BENEATH] = _count((size < setting[Told.SMALLEST]) & (size != 0))
    if found[Distance.SIZE_MOST] > limit:
        beyond = size > limit
        found[Distance.BEYOND] = _count(beyond)
        clipped = beyond & (np.abs(a.astype(np.float64, copy=False)) == limit)
        found[Distance.CLIPPED] = _count(clipped)
    return found


def _count(where: np.ndarray) -> float:
    return float(np.count_nonzero(where))


def _bits(x: np.ndarray) -> np.ndarray:
    x = np.ascontiguousarray(x)
    return x if x.dtype.kind in "iub" else x.view(f"u{x.dtype.itemsize}")


def same_bits(actual: np.ndarray, reference: np.ndarray) -> bool:
    """Return whether two arrays of one shape have the same dtype and bytes."""
    if actual.dtype != reference.dtype:
        return False
    return bool(np.array_equal(_bits(actual), _bits(reference)))


def in_parts(function: Callable[..., _Part], *arrays: np.ndarray) -> Sequence[_Part]:
    """Return the results of `function` on parts of the flattened arrays, in order."""
    flat = [np.asarray(x).reshape(-1) for x in arrays]
    if flat[0].size <= PART_ELEMENTS:
        return [function(*flat)]
    starts = range(0, flat[0].size, PART_ELEMENTS)
    parts = [[x[n : n + PART_ELEMENTS] for x in flat] for n in starts]
    # A thread lacks the caller's context, which has NumPy's error state.
    contexts = [contextvars.copy_context() for _ in parts]
    return [*_threads().map(lambda c, x: c.run(function, *x), contexts, parts)]


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1))


def blocks_of(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield corresponding parts of flat `arrays`; each part fits the cache."""
    for start in range(0, arrays[0].size, BLOCK_ELEMENTS):
        yield tuple(x[start : start + BLOCK_ELEMENTS] for x in arrays)
