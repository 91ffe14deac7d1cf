"""Distances of numbers from their reference: sums, counts and maxima.

Compiled code compares finite FP32 and FP64 numbers in one pass, many times as fast as
NumPy, which compares other arrays in blocks that fit a cache.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from enum import IntEnum, auto
from typing import Any

import numpy as np

from neuronjax.diagnostics.differences import alike
from neuronjax.numerics.host_kernels import choice
from neuronjax.numerics.host_kernels.figures import ASKED_BY, MAXIMA, Distance, Told

# Elements per block: too few for a BLAS to start threads for a dot product.
BLOCK_ELEMENTS = 1 << 13
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
_ALWAYS = frozenset(Distance).difference(*ASKED_BY.values())
_TYPES = {"fd", "ff", "dd"}
_Numbers = ctypes.c_double * len(Distance)  # settings or results of the kernel


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

    def measured_now() -> Figures:
        # The order of elements does not matter, so they are read as they are in memory.
        order = sorted(range(actual.ndim), key=lambda n: -actual.strides[n])
        a, r = (x.transpose(order).reshape(-1) for x in (actual, reference))
        with np.errstate(all="ignore"):
            found = distances(a, r, setting)
            if found is not None:
                return found
            return _total(_of_block(x, y, setting) for x, y in blocks_of(a, r))

    known = _KNOWN.get() or {}
    measured, _ = known.get((id(actual), id(reference)), ((), ()))
    for of, found in measured:
        if _includes(of, setting):
            return found
    found = measured_now()
    if actual.size > BLOCK_ELEMENTS:  # a smaller one is measured faster than remembered
        remember(actual, reference, setting, found)
    return found


def remember(
    actual: np.ndarray,
    reference: np.ndarray,
    setting: Mapping[Told, float],
    found: Figures,
) -> None:
    """Let `figures` return `found` for these arrays, inside of `remembering`."""
    known, pair = _KNOWN.get(), (id(actual), id(reference))
    if known is None:
        return
    if pair not in known:
        # The entry is removed when an array is freed, before another array gets its id.
        arrays, ended = (actual, reference), lambda _: known.pop(pair, None)
        known[pair] = [], [weakref.ref(x, ended) for x in arrays]
    known[pair][0].append((setting, found))


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
    """Remember the distances of pairs of arrays inside this context, so that large
    arrays are not measured again for the same settings. Arrays must not be written to
    inside the context. This saves time in a loop, which passes most arrays on to its
    next iteration."""
    known = _KNOWN.get()
    before = _KNOWN.set({} if known is None else known)
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
) -> Figures | None:
    """Return the distances of flat arrays by compiled code; None if compiled code
    cannot be used, or if a sum of squares is not finite.

    A parameter that is missing in `setting` is 0."""
    is_short = actual.dtype.itemsize < 4 and actual.dtype.kind not in "iub"
    types = ("f" if is_short else actual.dtype.char) + reference.dtype.char
    if types not in _TYPES or not choice.usable():
        return None
    ours = actual.astype(np.float32) if is_short else actual
    told, wanted, asked = _asked(tuple(setting.items()))
    measure, found = choice.on_arrays("distance_kernel", asked, types), _Numbers()
    measure(*map(np.ascontiguousarray, (ours, reference)), told, found)
    totals = dict(zip(wanted, found, strict=False))
    if not math.isfinite(totals[Distance.ERROR2] + totals[Distance.REFERENCE2]):
        return None
    if is_short and Distance.DIFFERENT in totals:  # the kernel rounds to FP32
        totals[Distance.DIFFERENT] = _count(_different(actual, reference))
    return completed(totals)


def completed(totals: Mapping[Any, float]) -> Figures:
    """Return totals of finite numbers and the other figures, which follow from them."""
    return {**_NOTHING, **totals, Broken.KNOWN2: totals[Distance.REFERENCE2]}


@functools.lru_cache(maxsize=1024)
def _asked(
    setting: tuple[tuple[Told, float], ...],
) -> tuple[Any, Sequence[Distance], int]:
    """Return the settings as an array, the figures that the settings ask for, and a
    number whose bit n says whether the settings ask for figure n."""
    told = dict(setting)
    asked = _ALWAYS.union(*(ASKED_BY.get(name, ()) for name in told))
    numbers = _Numbers(*(told.get(name, 0.0) for name in Told))
    return numbers, sorted(asked), sum(1 << figure for figure in asked)


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
        found[Distance.DIFFERENT] = _count(_different(actual, reference))
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


def _different(actual: np.ndarray, reference: np.ndarray) -> np.ndarray:
    if actual.dtype == reference.dtype:
        differs = _bits(actual) != _bits(reference)
    else:
        differs = actual != reference.astype(actual.dtype)
    if actual.dtype.kind in "iub":
        return differs
    return differs & ~(np.isnan(actual) & np.isnan(reference))


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


def blocks_of(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield corresponding parts of flat `arrays`; each part fits the cache."""
    for start in range(0, arrays[0].size, BLOCK_ELEMENTS):
        yield tuple(x[start : start + BLOCK_ELEMENTS] for x in arrays)
