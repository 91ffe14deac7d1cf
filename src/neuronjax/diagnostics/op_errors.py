"""How far an array is from its reference, in sums that add up over blocks and calls.

An `Errors` holds sums and maxima, so those of two arrays, two results of an op or two
iterations of a loop can be merged; relative L2, cosine and SQNR follow from the sums.
Everything is computed in float64, in blocks that fit a cache, and of large arrays on
several threads. Numbers that are finite on one side alone are counted and left out of
the sums.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from neuronjax.diagnostics.differences import alike
from neuronjax.diagnostics.distances import Figures, distances
from neuronjax.numerics.host_kernels.figures import Distance, Told

# Below the size from which a BLAS starts threads for a dot product.
BLOCK_ELEMENTS = 1 << 13
#: What a thread takes at a time, and how many threads there are at most.
PART_ELEMENTS = 1 << 17
MAX_THREADS = 8
_Part = TypeVar("_Part")
_EXPONENT_FIELD = np.uint64(0x7FF0 << 48)


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """The errors of some elements.

    A ULP is the spacing of the declared format (1 for integers) at the larger of the
    two magnitudes, so that a small number where the reference has a zero does not count
    as 2^100 of them.

    Attributes:
        elements: how many.
        differing: of them, whose bits are not the reference's (float64: whose value
            is not the reference's rounded to the format); two NaNs are alike.
        nonfinite: NaN and Inf among the actual numbers.
        nonfinite_reference: among the reference's.
        nonfinite_changed: elements with a NaN or Inf that is not the reference's.
        max_ulp: largest error; Inf where a NaN or Inf has changed.
        sum_ulp, sum_error2, sum_reference2, sum_actual2, sum_product: of the elements
            that are finite on both sides.
    """

    elements: int = 0
    differing: int = 0
    nonfinite: int = 0
    nonfinite_reference: int = 0
    nonfinite_changed: int = 0
    max_ulp: float = 0.0
    sum_ulp: float = 0.0
    sum_error2: float = 0.0
    sum_reference2: float = 0.0
    sum_actual2: float = 0.0
    sum_product: float = 0.0

    def __add__(self, other: Errors) -> Errors:
        sums = {n: getattr(self, n) + getattr(other, n) for n in _SUMMED}
        return Errors(max_ulp=max(self.max_ulp, other.max_ulp), **sums)

    def repeated(self, times: int) -> Errors:
        """Of an array that has every element so many times."""
        sums = {n: times * getattr(self, n) for n in _SUMMED}
        return Errors(max_ulp=self.max_ulp, **sums)

    @property
    def mean_ulp(self) -> float:
        """The mean error of all elements in ULPs."""
        return self.sum_ulp / self.elements if self.elements else 0.0

    @property
    def relative_l2(self) -> float:
        """Norm of the error over that of the reference; Inf where a number ceased or
        began to be finite."""
        if self.nonfinite_changed:
            return math.inf
        if self.sum_error2 == 0:
            return 0.0
        if self.sum_reference2 == 0:
            return math.inf
        return math.sqrt(self.sum_error2) / math.sqrt(self.sum_reference2)

    @property
    def cosine(self) -> float:
        """Of the angle between actual and reference; 1 for two zeros."""
        norms = math.sqrt(self.sum_actual2) * math.sqrt(self.sum_reference2)
        if norms == 0:
            return float(self.sum_actual2 == self.sum_reference2)
        return max(-1.0, min(1.0, self.sum_product / norms))

    @property
    def sqnr_db(self) -> float:
        """Signal-to-quantization-noise ratio in decibels; Inf without an error."""
        error = self.relative_l2
        return math.inf if error == 0 else -20 * math.log10(error)

    def as_dict(self) -> dict[str, float | int]:
        """The figures of a report."""
        return {name: getattr(self, name) for name in _REPORTED}


_SUMMED = tuple(f.name for f in fields(Errors) if f.name != "max_ulp")
_REPORTED = (
    *("elements", "differing", "max_ulp", "mean_ulp", "relative_l2", "cosine"),
    *("sqnr_db", "nonfinite", "nonfinite_reference", "nonfinite_changed"),
)


def same_bits(actual: np.ndarray, reference: np.ndarray) -> bool:
    """Whether two arrays of one shape hold the same bytes of the same dtype."""
    if actual.dtype != reference.dtype:
        return False
    return bool(np.array_equal(_bytes(actual), _bytes(reference)))


def errors_of(actual: np.ndarray, reference: np.ndarray) -> Errors:
    """The errors of an array in its declared format; the reference may be float64."""
    spacing = _Spacing.of(actual.dtype)

    def part(actual: np.ndarray, reference: np.ndarray) -> Errors:
        found = distances(actual, reference, spacing.setting)
        if found is not None:
            return _of_figures(found, actual.size, actual.dtype == reference.dtype)
        with np.errstate(all="ignore"):
            blocks = blocks_of(actual, reference)
            return _total([_block_errors(a, r, spacing) for a, r in blocks])

    return _total(in_parts(part, actual, reference))


def _total(found: Sequence[Errors]) -> Errors:
    """As their sum, without an object for every partial one."""
    sums = {name: sum(getattr(e, name) for e in found) for name in _SUMMED}
    return Errors(max_ulp=max((e.max_ulp for e in found), default=0.0), **sums)


def in_parts(function: Callable[..., _Part], *arrays: np.ndarray) -> Sequence[_Part]:
    """A function of flat parts of large arrays, on several threads, in their order.

    NumPy's warnings are the caller's choice, which a thread does not inherit."""
    flat = [np.asarray(x).reshape(-1) for x in arrays]
    starts = range(0, max(1, flat[0].size), PART_ELEMENTS)
    parts = [[x[n : n + PART_ELEMENTS] for x in flat] for n in starts]
    if len(parts) == 1:
        return [function(*parts[0])]
    warns = np.geterr()

    def of_part(part: Sequence[np.ndarray]) -> _Part:
        with np.errstate(**warns):
            return function(*part)

    return [*_threads().map(of_part, parts)]


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1))


def blocks_of(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Flat arrays of one size, in parts that a cache holds."""
    for start in range(0, arrays[0].size, BLOCK_ELEMENTS):
        stop = start + BLOCK_ELEMENTS
        yield tuple(x[start:stop] for x in arrays)


@dataclass(frozen=True)
class _Spacing:
    """Spacing of a format: 2^(exponent - mantissa_bits), no finer than at the smallest
    normal number."""

    is_float: bool
    min_exponent: int = 0
    mantissa_bits: int = 0

    @classmethod
    def of(cls, dtype: Any) -> _Spacing:
        if np.dtype(dtype).kind in "iub":
            return cls(False)
        info: Any = ml_dtypes.finfo(dtype)
        return cls(True, int(info.minexp), int(info.nmant))

    @property
    def setting(self) -> Mapping[Told, float]:
        """The same for a kernel."""
        smallest, steps = 2.0**self.min_exponent, 2.0**self.mantissa_bits
        return {Told.STEP: smallest, Told.PRECISION: steps}

    def at_either(self, a: np.ndarray, r: np.ndarray) -> np.ndarray:
        """At the larger magnitude of float64 numbers: their exponent field is a power
        of two."""
        power = a.view(np.uint64) & _EXPONENT_FIELD
        other = r.view(np.uint64) & _EXPONENT_FIELD
        power, other = power.view(np.float64), other.view(np.float64)
        np.maximum(power, other, out=power)
        np.maximum(power, 2.0**self.min_exponent, out=power)
        power *= 2.0**-self.mantissa_bits
        return power


def _block_errors(actual: np.ndarray, reference: np.ndarray, at: _Spacing) -> Errors:
    a, r = actual.astype(np.float64), reference.astype(np.float64, copy=False)
    error = a - r
    error2 = float(np.dot(error, error))
    if not math.isfinite(error2):
        return _nonfinite_errors(actual, reference, a, r, at)
    norm2 = float(np.dot(r, r))
    if not error2 and actual.dtype.kind == "f" and not error.any():
        return Errors(
            elements=a.size,
            differing=_differing(actual, reference),
            sum_reference2=norm2,
            sum_actual2=norm2,
            sum_product=norm2,
        )
    ulp = np.abs(error, out=error)
    if at.is_float:
        ulp = np.divide(ulp, at.at_either(a, r), out=error)
    return Errors(
        elements=a.size,
        differing=_differing(actual, reference),
        max_ulp=float(ulp.max(initial=0.0)),
        sum_ulp=float(ulp.sum()),
        sum_error2=error2,
        sum_reference2=norm2,
        sum_actual2=float(np.dot(a, a)),
        sum_product=float(np.dot(a, r)),
    )


def _of_figures(found: Figures, elements: int, bits: bool) -> Errors:
    different = Distance.DIFFERENT_BITS if bits else Distance.DIFFERENT
    return Errors(
        elements=elements,
        differing=int(found[different]),
        max_ulp=found[Distance.ULP_MOST],
        sum_ulp=found[Distance.ULP],
        sum_error2=found[Distance.ERROR2],
        sum_reference2=found[Distance.REFERENCE2],
        sum_actual2=found[Distance.ACTUAL2],
        sum_product=found[Distance.PRODUCT],
    )


def _differing(actual: np.ndarray, reference: np.ndarray) -> int:
    """How many bits differ of numbers that are finite."""
    if actual.dtype != reference.dtype:
        return int(np.count_nonzero(actual != reference.astype(actual.dtype)))
    return int(np.count_nonzero(_bytes(actual) != _bytes(reference)))


def _nonfinite_errors(
    actual: np.ndarray,
    reference: np.ndarray,
    a: np.ndarray,
    r: np.ndarray,
    at: _Spacing,
) -> Errors:
    """Of a block with an Inf or NaN, or with errors that overflow."""
    differs = _differs(actual, reference, a, r)
    finite_a, finite_r = np.isfinite(a), np.isfinite(r)
    usable = finite_a & finite_r
    changed = ~usable & ~alike(a, r)
    if not usable.all():
        a, r = np.where(usable, a, 0.0), np.where(usable, r, 0.0)
    error = np.abs(a - r)
    ulp = error / at.at_either(a, r) if at.is_float else error
    count = int(changed.sum())
    return Errors(
        elements=a.size,
        differing=int(differs.sum()),
        nonfinite=a.size - int(finite_a.sum()),
        nonfinite_reference=a.size - int(finite_r.sum()),
        nonfinite_changed=count,
        max_ulp=math.inf if count else float(ulp.max(initial=0.0)),
        sum_ulp=float(ulp.sum()),
        sum_error2=float(np.dot(error, error)),
        sum_reference2=float(np.dot(r, r)),
        sum_actual2=float(np.dot(a, a)),
        sum_product=float(np.dot(a, r)),
    )


def _differs(
    actual: np.ndarray, reference: np.ndarray, a: np.ndarray, r: np.ndarray
) -> np.ndarray:
    """Where the bits are not alike."""
    if actual.dtype != reference.dtype:
        rounded = reference.astype(actual.dtype)
        return (actual != rounded) & ~(np.isnan(a) & np.isnan(r))
    return (_bytes(actual) != _bytes(reference)) & ~(np.isnan(a) & np.isnan(r))


def _bytes(x: np.ndarray) -> np.ndarray:
    x = np.ascontiguousarray(x)
    return x if x.dtype.kind in "iub" else x.view(f"u{x.dtype.itemsize}")
