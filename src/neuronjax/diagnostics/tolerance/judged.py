"""A tolerance for every element of a result, and what it says of a candidate's."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from neuronjax.diagnostics.differences import alike
from neuronjax.errors import InvalidProgramError

_BLOCK_ELEMENTS = 1 << 16


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
        worst: index of the worst element; None for an empty result.
        times_bound: its error, in bounds.
        relative_l2: norm of the errors over the norm of the reference.
        relative_l2_bound: what that may be.
    """

    elements: int
    refused: int
    non_finite: int
    undecided: int
    worst: tuple[int, ...] | None
    times_bound: float
    relative_l2: float
    relative_l2_bound: float

    @property
    def is_right(self) -> bool:
        """Whether every element and the whole are within their bounds."""
        return self.refused == 0 and self.relative_l2 <= self.relative_l2_bound

    def __bool__(self) -> bool:
        return self.is_right

    def as_text(self) -> str:
        """A few lines for a log."""
        word = "right" if self.is_right else "wrong"
        lines = [
            f"{word}: {self.refused} of {self.elements} elements beyond their bounds",
            f"  worst: {self.times_bound:.3g} of its bound, at {self.worst}",
            f"  relative L2: {self.relative_l2:.3g} of {self.relative_l2_bound:.3g}",
        ]
        if self.non_finite:
            lines.append(f"  infinite or NaN on one side: {self.non_finite}")
        if self.undecided:
            lines.append(f"  not decided, bound infinite: {self.undecided}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True, eq=False)
class Tolerance:
    """What a right result may be.

    Attributes:
        value: the reference, float64 (FP32 where it is large).
        bound: absolute, of every element. FP32.
        l2_bound: of the norm of all errors.
    """

    value: np.ndarray
    bound: np.ndarray
    l2_bound: float

    @property
    def relative_l2_bound(self) -> float:
        """The bound of the norm, over the norm of the reference."""
        return _ratio(self.l2_bound, self._norm)

    @property
    def largest_passing(self) -> float:
        """The largest relative L2 error that passes; an element that has no bound
        counts as wrong by all of its size, and where none has one all passes."""
        if self.bound.size and np.isposinf(self.bound).all():
            return math.inf
        bounded, unbounded = self._squares
        return _ratio(
            math.hypot(self.l2_bound, math.sqrt(unbounded)),
            math.sqrt(bounded + unbounded),
        )

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
        value, bound = self.value.reshape(-1), self.bound.reshape(-1)
        sums = [0.0, 0.0]
        for block in flat_blocks(value.size):
            finite = np.where(np.isfinite(value[block]), value[block], 0.0)
            has = np.isfinite(bound[block])
            for n, kind in enumerate((has, ~has)):
                sums[n] += sum_of_squares(np.where(kind, finite, 0.0))
        return sums[0], sums[1]

    def _verdict(self, found: np.ndarray) -> Judged:
        value, bound = self.value.reshape(-1), self.bound.reshape(-1)
        total = _Tally()
        for block in flat_blocks(value.size):
            total.add(block.start, _beside(found[block], value[block], bound[block]))
        worst = None if total.worst is None else self._index(total.worst)
        return Judged(
            elements=value.size,
            refused=total.refused,
            non_finite=total.non_finite,
            undecided=total.undecided,
            worst=worst,
            times_bound=total.times_bound,
            relative_l2=_ratio(math.sqrt(total.squares), self._norm),
            relative_l2_bound=self.relative_l2_bound,
        )

    def _index(self, number: int) -> tuple[int, ...]:
        return tuple(int(i) for i in np.unravel_index(number, self.value.shape))


class _BlockErrors(NamedTuple):
    """Of a block: errors, also in bounds, and two kinds of elements."""

    error: np.ndarray
    times: np.ndarray
    broken: np.ndarray
    undecided: np.ndarray


def _beside(found: np.ndarray, value: np.ndarray, bound: np.ndarray) -> _BlockErrors:
    found = found.astype(np.float64)
    finite = np.isfinite(value)
    same = alike(found, value)
    undecided = np.isposinf(bound)
    with np.errstate(all="ignore"):
        error = np.where(same, 0.0, np.abs(found - value))
        broken = ~same & ~undecided & ~(np.isfinite(found) & finite)
        counts = finite & np.isfinite(bound)
        error = np.where(broken, math.inf, np.where(counts, error, 0.0))
        times = np.where(error == 0.0, 0.0, error / bound)
    return _BlockErrors(error, times, broken, undecided)


@dataclasses.dataclass
class _Tally:
    """What the blocks so far have."""

    refused: int = 0
    non_finite: int = 0
    undecided: int = 0
    worst: int | None = None
    times_bound: float = 0.0
    squares: float = 0.0

    def add(self, start: int, e: _BlockErrors) -> None:
        """The block that begins with element `start`."""
        self.refused += int(np.count_nonzero(e.times > 1.0))
        self.non_finite += int(np.count_nonzero(e.broken))
        self.undecided += int(np.count_nonzero(e.undecided))
        self.squares += sum_of_squares(e.error)
        number = int(e.times.argmax())
        most = float(e.times[number])
        if self.worst is None or most > self.times_bound:
            self.worst, self.times_bound = start + number, most


def flat_blocks(elements: int) -> Iterator[slice]:
    """Of so few elements that what is made of them stays in the cache."""
    for start in range(0, elements, _BLOCK_ELEMENTS):
        yield slice(start, start + _BLOCK_ELEMENTS)


def sum_of_squares(x: np.ndarray) -> float:
    """Of a vector, in float64; not by BLAS, whose threads take longer to meet."""
    wide = x.astype(np.float64, copy=False)
    return float(np.einsum("i,i->", wide, wide))


def _ratio(error: float, norm: float) -> float:
    if norm == 0.0:
        return 0.0 if error == 0.0 else math.inf
    return error / norm
