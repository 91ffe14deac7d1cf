"""A tolerance for every element of a result, and what it says of a candidate's."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from neuronjax.diagnostics.differences import alike, ratio
from neuronjax.errors import InvalidProgramError

_BLOCK_ELEMENTS = 1 << 14


@dataclasses.dataclass(frozen=True)
class Judged:
    """A result beside its tolerance; true if it is right.

    Attributes:
        elements: how many there are.
        refused: how many are beyond their bound, or are no numbers where the
            reference has numbers.
        non_finite: how many of them are infinite or NaN on one side alone.
        undecided: how many have an infinite bound: they depend on numbers that are
            closer than their bounds, or may overflow.
        worst: index of the element with the largest error in bounds; None for an empty
            result.
        times_bound: its error, in bounds.
        furthest: index of the element with the largest error, whatever its bound is.
        relative_l2: norm of the errors over the norm of the reference, of the elements
            that have a bound.
        relative_l2_bound: what that may be.
        distance: the same of all elements, from the reference as FP32 holds it.
        is_within: whether the norm of the errors is within its bound.
    """

    elements: int
    refused: int
    non_finite: int
    undecided: int
    worst: tuple[int, ...] | None
    times_bound: float
    furthest: tuple[int, ...] | None
    relative_l2: float
    relative_l2_bound: float
    distance: float
    is_within: bool

    def __bool__(self) -> bool:
        return self.refused == 0 and self.is_within


@dataclasses.dataclass(frozen=True, eq=False)
class Tolerance:
    """What a right result may be.

    Attributes:
        value: the reference, float64 (FP32 where it is large).
        bound: absolute, of every element; None where only the norm has one.
        l2_bound: of the norm of all errors.
        runs: how many runs with drawn errors have narrowed it.
    """

    value: np.ndarray
    bound: np.ndarray | None
    l2_bound: float
    runs: int = 0

    @classmethod
    def of_norm(cls, value: np.ndarray, relative: float) -> Tolerance:
        """Return the tolerance of a relative L2 error, absolute where all is zero."""
        norm = cls(value, None, 0.0)._norm
        return cls(value, None, relative * norm if norm else relative)

    @property
    def relative_l2_bound(self) -> float:
        """The bound of the norm, over the norm of the reference."""
        return ratio(self.l2_bound, self._norm)

    @property
    def largest_passing(self) -> float:
        """The largest relative L2 error that passes; an element that has no bound
        counts as wrong by all of its size, and where none has one all passes."""
        if self.bound is None:
            return self.relative_l2_bound
        if self.bound.size and np.isposinf(self.bound).all():
            return math.inf
        bounded, unbounded = self._squares
        return ratio(
            math.hypot(self.l2_bound, math.sqrt(unbounded)),
            math.sqrt(bounded + unbounded),
        )

    def catches(self, wrong: np.ndarray) -> bool:
        """Return whether a result of the same shape is refused, as soon as it is."""
        found = wrong.reshape(-1)
        for block in flat_blocks(found.size):
            if self.bound is not None and (self._beside(found, block).times > 1).any():
                return True
        return not self.check(wrong)

    def check(self, actual: object) -> Judged:
        """Compares a candidate's result.

        Args:
            actual: array of the reference's shape, of any dtype.

        Raises:
            InvalidProgramError: another shape.
        """
        found = np.asarray(actual)
        if found.shape != self.value.shape:
            raise InvalidProgramError(
                f"the result has shape {found.shape}, the reference {self.value.shape}",
                remedy="bring the result into the reference's shape",
            )
        return self._verdict(found.reshape(-1))

    @property
    def _norm(self) -> float:
        return math.sqrt(self._squares[0])

    @functools.cached_property
    def _squares(self) -> tuple[float, float]:
        """Of the finite elements that have a bound the sum of squares, and of those
        that have none."""
        value, sums = self.value.reshape(-1), [0.0, 0.0]
        for block in flat_blocks(value.size):
            bound = None if self.bound is None else self.bound.reshape(-1)[block]
            every = bound is None or bool(bound.max() < math.inf)
            squares = sum_of_squares(value[block]) if every else math.nan
            if math.isfinite(squares):
                sums[0] += squares
                continue
            wide = value[block].astype(np.float64, copy=False)
            finite = np.where(np.isfinite(wide), wide, 0.0)
            has = True if bound is None else np.isfinite(bound)
            for n, kind in enumerate((has, np.logical_not(has))):
                sums[n] += sum_of_squares(np.where(kind, finite, 0.0))
        return sums[0], sums[1]

    def _verdict(self, found: np.ndarray) -> Judged:
        total = _Tally()
        for block in flat_blocks(found.size):
            total.add(block.start, self._beside(found, block))
        error, norm = math.sqrt(total.squares), math.sqrt(sum(self._squares))
        return Judged(
            elements=found.size,
            refused=total.refused,
            non_finite=total.non_finite,
            undecided=total.undecided,
            worst=self._index(total.worst),
            times_bound=total.times_bound,
            furthest=self._index(total.furthest),
            relative_l2=ratio(error, self._norm),
            relative_l2_bound=self.relative_l2_bound,
            distance=ratio(math.sqrt(total.all_squares), norm),
            is_within=error <= self.l2_bound,
        )

    def _beside(self, found: np.ndarray, block: slice) -> _BlockErrors:
        value = self.value.reshape(-1)[block]
        off = error = apart(found[block], value)
        if self.bound is None:
            return _BlockErrors(off, off, np.zeros(off.shape), 0)
        if value.dtype == np.float64:
            with np.errstate(over="ignore"):  # values that FP32 has as Inf
                off = apart(found[block], value.astype(np.float32))
        bound = self.bound.reshape(-1)[block]
        undecided = 0
        if not bound.max() < math.inf:
            has_none = np.isposinf(bound)
            undecided = int(np.count_nonzero(has_none))
            error = np.where(has_none, 0.0, error)
        with np.errstate(all="ignore"):
            times = error / bound
        if not times.max() < math.inf:
            times[error == 0.0] = 0.0
        return _BlockErrors(off, error, times, undecided)

    def _index(self, number: int | None) -> tuple[int, ...] | None:
        if number is None:
            return None
        return tuple(int(i) for i in np.unravel_index(number, self.value.shape))


def apart(actual: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return errors: infinite for a NaN or an Inf that only one side has."""
    a, b = (x.astype(np.float64, copy=False) for x in (actual, value))
    with np.errstate(all="ignore"):
        off = np.asarray(np.abs(a - b))
    if not off.max(initial=0.0) < math.inf:
        off[alike(a, b)] = 0.0
        off[np.isnan(off)] = math.inf
    return off


class _BlockErrors(NamedTuple):
    """Errors of a block: from what FP32 holds, of elements with a bound, in bounds; and
    how many elements have none."""

    off: np.ndarray
    error: np.ndarray
    times: np.ndarray
    undecided: int


@dataclasses.dataclass
class _Tally:
    """What the blocks so far have."""

    refused: int = 0
    non_finite: int = 0
    undecided: int = 0
    worst: int | None = None
    times_bound: float = 0.0
    furthest: int | None = None
    largest: float = 0.0
    squares: float = 0.0
    all_squares: float = 0.0

    def add(self, start: int, e: _BlockErrors) -> None:
        """The block that begins with element `start`."""
        number, place = int(e.times.argmax()), int(e.off.argmax())
        squares = sum_of_squares(e.error)
        self.squares += squares
        self.all_squares += squares if e.off is e.error else sum_of_squares(e.off)
        self.undecided += e.undecided
        self.refused += int(np.count_nonzero(e.times > 1.0))
        if not math.isfinite(squares):
            self.non_finite += int(np.count_nonzero(np.isinf(e.error)))
        if self.worst is None or e.times[number] > self.times_bound:
            self.worst, self.times_bound = start + number, float(e.times[number])
        if self.furthest is None or e.off[place] > self.largest:
            self.furthest, self.largest = start + place, float(e.off[place])


def flat_blocks(elements: int) -> Iterator[slice]:
    """Of so few elements that what is made of them stays in the cache."""
    for start in range(0, elements, _BLOCK_ELEMENTS):
        yield slice(start, start + _BLOCK_ELEMENTS)


def sum_of_squares(x: np.ndarray) -> float:
    """Of a vector, in float64; not by BLAS, whose threads take longer to meet."""
    wide = x.astype(np.float64, copy=False)
    return float(np.einsum("i,i->", wide, wide))
