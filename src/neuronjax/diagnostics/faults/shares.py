"""An array of a run against its reference, in a few figures.

They are added up in blocks that fit a cache, and what most arrays do not need is only
looked at in those that do: an array that is as near as its format allows has no use for
what perturbed data make of it, and one without an error has lost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from neuronjax.diagnostics.distances import distances
from neuronjax.diagnostics.op_errors import blocks_of, in_parts
from neuronjax.numerics.float_format import FORMATS, get_format
from neuronjax.numerics.host_kernels.figures import Distance, Told

#: A number that is off by more than this share of itself is lost; a whole number by
#: this, for it has no rounding, and by more than one.
LOST = 0.5
LOST_WHOLE = 0.1
LEAST_WHOLE = 15.0
#: Share of elements that are lost, from which on it matters whether the data excuse it.
MOST_LOST = 0.1
#: Numbers smaller than the typical one by this much of a roundoff are nothing.
NOTHING = 2.0**-10


class Seen(NamedTuple):
    """An array in three runs.

    Attributes:
        dtype: as declared.
        reference: float64 for floats.
        actual: of the declared dtype.
        perturbed: of the reference on perturbed data; None where it did not run.
    """

    dtype: Any
    reference: np.ndarray
    actual: np.ndarray
    perturbed: np.ndarray | None


@dataclass(frozen=True, slots=True)
class Share:
    """An array against its reference.

    Attributes:
        elements: how many.
        error: relative L2; Inf where a number ceased or began to be finite.
        data_error: the same of the perturbed reference; 0 where the error needs no
            such excuse.
        lost: share of elements off by more than half of themselves; of integers, by
            more than a tenth and by more than one.
        data_lost: the same of the perturbed reference; 0 where few are lost.
        nonfinite, nonfinite_reference: elements that are Inf or NaN.
        nan: elements that are NaN.
        zeros: share of elements that are zero, and not in the reference.
        nothing: share of elements that are zero.
        beneath: share of elements whose reference is below the smallest normal number.
        beyond: share of elements whose reference the format cannot hold.
        clipped: of these, those at the largest finite number.
        norm: root mean square of the reference.
        largest: magnitude of the reference.
    """

    elements: int
    error: float
    data_error: float
    lost: float
    data_lost: float
    nonfinite: int
    nonfinite_reference: int
    nan: int
    zeros: float
    nothing: float
    beneath: float
    beyond: float
    clipped: float
    norm: float
    largest: float


_TOLD: tuple[Told, ...] = Told.SMALLEST, Told.LARGEST, Told.LOST
_COUNTED = {
    "error2": Distance.ERROR2,
    "norm2": Distance.REFERENCE2,
    "known2": Distance.REFERENCE2,
    "zeros": Distance.ZEROS,
    "nothing": Distance.NOTHING,
    "beneath": Distance.BENEATH,
    "beyond": Distance.BEYOND,
    "clipped": Distance.CLIPPED,
    "doubtful": Distance.LOST,
}


@dataclass
class _Counts:
    """Sums over blocks; those of errors over elements that are finite on both sides."""

    error2: float = 0.0
    norm2: float = 0.0
    known2: float = 0.0
    largest: float = 0.0
    nonfinite: int = 0
    nonfinite_reference: int = 0
    changed: int = 0
    nan: int = 0
    zeros: float = 0
    nothing: float = 0
    beneath: float = 0
    beyond: float = 0
    clipped: float = 0
    # What is lost unless it is nothing beside the others.
    doubtful: float = 0.0

    def add(
        self, a: np.ndarray, r: np.ndarray, ends: tuple[float, float], lost: float
    ) -> None:
        """One part of an array."""
        told = dict(zip(_TOLD, (*ends, lost), strict=True))
        found = distances(a, r, told)
        if found is None:
            for x, y in _wide_blocks(a, r):
                self._add_wide(x, y, ends, lost)
            return
        for name, figure in _COUNTED.items():
            setattr(self, name, getattr(self, name) + found[figure])
        self.largest = max(self.largest, found[Distance.SIZE_MOST])

    def _add_wide(
        self, a: np.ndarray, r: np.ndarray, ends: tuple[float, float], lost: float
    ) -> None:
        error = a - r
        error2, known, usable = float(error @ error), r, r
        if not math.isfinite(error2):
            known, usable, error = self._nonfinite(a, r, error)
            error2 = float(error @ error)
        self.error2 += error2
        self.norm2 += float(usable @ usable)
        self.known2 += float(known @ known)
        size = np.abs(known)
        self._range(a, r, size, ends)
        if error2 or error.any():  # squares of small errors are zero
            np.abs(error, out=error)
            self.doubtful += np.count_nonzero(error > lost * size)

    @classmethod
    def total(cls, parts: Iterable[_Counts]) -> _Counts:
        """Of all parts of an array."""
        whole = cls()
        for part in parts:
            for name, value in vars(part).items():
                own = getattr(whole, name)
                together = max(own, value) if name == "largest" else own + value
                setattr(whole, name, together)
        return whole

    def _nonfinite(
        self, a: np.ndarray, r: np.ndarray, error: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Counts Inf and NaN: the reference without them, and what is usable of it and
        of the error."""
        finite_a, finite_r = np.isfinite(a), np.isfinite(r)
        self.nonfinite += a.size - int(np.count_nonzero(finite_a))
        self.nonfinite_reference += r.size - int(np.count_nonzero(finite_r))
        self.nan += int(np.count_nonzero(np.isnan(a)))
        self.changed |= not np.array_equal(finite_a, finite_r)
        usable = finite_a & finite_r
        parts = (finite_r, r), (usable, r), (usable, error)
        known, used, error = (np.where(where, x, 0.0) for where, x in parts)
        return known, used, error

    def _range(
        self,
        a: np.ndarray,
        r: np.ndarray,
        size: np.ndarray,
        ends: tuple[float, float],
    ) -> None:
        """Zeros, and what a format cannot hold."""
        smallest, limit = ends
        largest = float(size.max(initial=0.0))
        self.largest = max(self.largest, largest)
        nothing = int(np.count_nonzero(a == 0))
        if nothing:
            self.nothing += nothing
            self.zeros += int(np.count_nonzero((a == 0) & (r != 0)))
        if smallest and np.any(size < smallest):
            self.beneath += int(np.count_nonzero((size < smallest) & (size != 0)))
        if largest > limit:
            beyond = size > limit
            self.beyond += int(np.count_nonzero(beyond))
            self.clipped += int(np.count_nonzero(beyond & (np.abs(a) == limit)))


def share_of(x: Seen, unit: float, excused: float = 0.0) -> Share:
    """The figures of an array of any dtype.

    Args:
        x: the array.
        unit: roundoff of the coarsest format on its way.
        excused: an error up to this needs no excuse of the data.
    """
    ends, is_whole = _range(x.dtype), np.dtype(x.dtype).kind in "iu"
    limit = LOST_WHOLE if is_whole else LOST

    def count(a: np.ndarray, r: np.ndarray) -> _Counts:
        counts = _Counts()
        counts.add(a, r, ends, limit)
        return counts

    counts = _Counts.total(in_parts(count, x.actual, x.reference))
    size = max(1, np.size(x.reference))
    norm = math.sqrt(counts.known2 / size)
    error = math.inf if counts.changed else _root(counts.error2, counts.norm2)
    floor = LEAST_WHOLE if is_whole else norm * unit * NOTHING
    lost = _lost(x.actual, x.reference, floor, limit) if counts.doubtful else 0.0
    data_error = data_lost = 0.0
    if x.perturbed is not None and x.perturbed is not x.reference:
        if error > excused or lost > MOST_LOST:
            data_error = ratio(x.perturbed, x.reference)
        if lost > MOST_LOST:
            data_lost = _lost(x.perturbed, x.reference, floor, limit)
    return Share(
        elements=np.size(x.reference),
        error=error,
        data_error=data_error,
        lost=lost,
        data_lost=data_lost,
        nonfinite=counts.nonfinite,
        nonfinite_reference=counts.nonfinite_reference,
        nan=counts.nan,
        zeros=counts.zeros / size,
        nothing=counts.nothing / size,
        beneath=counts.beneath / size,
        beyond=counts.beyond / size,
        clipped=counts.clipped / size,
        norm=norm,
        largest=counts.largest,
    )


def repeated(share: Share, elements: int) -> Share:
    """The figures of an array that has every number of another equally often."""
    times = elements // max(1, share.elements)
    return replace(
        share,
        elements=elements,
        nonfinite=times * share.nonfinite,
        nonfinite_reference=times * share.nonfinite_reference,
        nan=times * share.nan,
    )


def wide(x: np.ndarray) -> np.ndarray:
    """Numbers of any dtype as float64."""
    return np.asarray(x).astype(np.float64, copy=False)


def ratio(a: np.ndarray, r: np.ndarray) -> float:
    """Relative L2 error of float64 numbers that are finite on both sides."""
    error2 = norm2 = 0.0
    for x, y in _wide_blocks(a, r):
        error = x - y
        more = float(error @ error)
        if not math.isfinite(more):
            usable = np.isfinite(x) & np.isfinite(y)
            error, y = np.where(usable, error, 0.0), np.where(usable, y, 0.0)
            more = float(error @ error)
        error2 += more
        norm2 += float(y @ y)
    return _root(error2, norm2)


def _wide_blocks(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    for parts in blocks_of(*(np.asarray(x).reshape(-1) for x in arrays)):
        yield tuple(map(wide, parts))


def _root(error2: float, norm2: float) -> float:
    if error2 == 0:
        return 0.0
    return math.inf if norm2 == 0 else math.sqrt(error2 / norm2)


def _lost(a: np.ndarray, r: np.ndarray, floor: float, lost: float) -> float:
    """Share of elements that are off by more than a share of themselves, or of what is
    nothing; of those finite on both sides."""

    def count(a: np.ndarray, r: np.ndarray) -> float:
        told = {Told.LOST: lost, Told.FLOOR: floor}
        found = distances(a, r, told)
        if found is not None:
            return found[Distance.LOST]
        return sum(_lost_of(x, y, floor, lost) for x, y in _wide_blocks(a, r))

    return sum(in_parts(count, a, r)) / max(1, np.size(r))


def _lost_of(x: np.ndarray, y: np.ndarray, floor: float, lost: float) -> int:
    size = np.maximum(np.abs(y), floor)
    size *= lost
    hits = np.abs(x - y) > size
    if not hits.any():
        return 0
    return int(np.count_nonzero(hits & np.isfinite(x) & np.isfinite(y)))


def _range(dtype: Any) -> tuple[float, float]:
    """The smallest normal number of a dtype, and the largest."""
    name = np.dtype(dtype).name
    if name not in FORMATS:
        return 0.0, math.inf
    fmt = get_format(name)
    return fmt.min_normal, fmt.max_finite
