"""Bounds from runs with random errors, for deep programs.

A rule multiplies the largest possible errors of operands by slopes. After a few layers
or iterations, in which errors cancel as often as they add, such a bound is far larger
than the error of any run. A *sampled run* adds random errors at the scales that the
rules give (for a rounding, an order of addition or a function) and continues with the
changed numbers: Monte Carlo arithmetic. So errors correlate and cancel in this run as
in the program. The distance of a correct run from the reference, in units of the
sampled distances, follows Student's t distribution, which gives the factor between
bound and sampled distances. Random errors are `AMPLITUDE` times too large and distances
are divided by `AMPLITUDE`, so that runs reach a nearby kink, such as `relu` has at 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from neuronjax.diagnostics.tolerance.judged import Tolerance
from neuronjax.diagnostics.tolerance.runs import RunsApartError, packed, unpacked
from neuronjax.diagnostics.tolerance.tracked import Tracked

SAMPLES = 32
AMPLITUDE = 4.0
#: Smallest scale of an element's error, as a share of the array's median scale.
_FLOOR = 0.125
#: A median bound above this share of an output's root mean square counts as wide.
_LITTLE = 2.0**-7

#: The largest number of elements of one array, in all runs together.
_MOST_HELD = 1 << 26

Key = TypeVar("Key")


class Draw:
    """The random errors of `count` runs, from run `number` on, of all `samples` runs.

    Arrays pack the numbers of these runs (`runs.py`). If `count` is 0, there is one run
    and arrays are plain."""

    def __init__(self, samples: int, number: int, count: int = 0) -> None:
        self._samples, self._number, self.count = samples, number, count
        self._generators = [
            np.random.Generator(np.random.SFC64((samples, number + n)))
            for n in range(max(1, count))
        ]
        self._alike: dict[str, Any] = {}

    def parts(self, at_once: int) -> Iterator[Draw]:
        """Yield draws of the same runs, at most `at_once` runs in each."""
        for start in range(0, self.count, at_once):
            count = min(at_once, self.count - start)
            yield Draw(self._samples, self._number + start, count)

    def need_room(self, size: int) -> None:
        """Check that an array of `size` elements may be stored for all runs together.

        Raises:
            RunsApartError: the array may be stored for fewer runs only.
        """
        if self.count > 1 and self.count * size > _MOST_HELD:
            raise RunsApartError(max(1, _MOST_HELD // size))

    def held(self, value: np.ndarray) -> np.ndarray:
        """Return `value`, packed with an equal copy for each run."""
        if not self.count:
            return value
        self.need_room(value.size)
        return packed(np.repeat(value[..., None], self.count, axis=-1))

    def made(self, x: Tracked) -> Tracked:
        """Return an array with the values of `x` plus random errors of its scales. The
        result carries no scales."""
        if x.dtype.kind in "iub" or x.is_exact:
            return x
        before = unpacked(x.value)
        error: np.ndarray | float = 0.0
        if x.own is not None:
            error = self._of_each(x.own) * self._numbers(x.shape)
        if x.joint is not None:
            common, single = self._numbers(()), self._numbers(x.shape)
            size = self._of_each(x.joint)
            error = error + size * (np.float32(0.5**0.5) * (common + single))
        for term in x.shared.values():
            size = self._of_each(term.scale)
            size = size * before if term.is_relative else size
            error = error + size * self._of(term.cause)
        value = before + error
        if not np.isfinite(value).all():
            # A number without a bound, for example if it may overflow, becomes NaN.
            value = np.where(np.isfinite(error), value, np.nan)
            value = np.where(np.isfinite(before), value, before)
        value = value.astype(before.dtype, copy=False)
        return Tracked(packed(value) if self.count else value, x.model, x.dtype)

    def _of_each(self, scale: np.ndarray) -> np.ndarray:
        return scale[..., None] if self.count else scale

    def _numbers(self, shape: tuple[int, ...]) -> np.ndarray:
        """Return random numbers of mean 0, standard deviation `AMPLITUDE`."""
        draws = np.empty((len(self._generators), *shape), np.float32)
        for generator, of_one in zip(self._generators, draws.reshape(len(draws), -1)):
            generator.random(dtype=np.float32, out=of_one)
        draws -= np.float32(0.5)
        draws *= np.float32(12**0.5 * AMPLITUDE)
        return np.moveaxis(draws, 0, -1) if self.count else draws[0]

    def _of(self, cause: str) -> Any:
        """Return one random error per `cause` (see `Shared`); a new error for ""."""
        if not cause or cause not in self._alike:
            self._alike[cause] = self._numbers(())
        return self._alike[cause]


class Spread:
    """Distances from a reference, per element, of `count` runs with random errors."""

    def __init__(self, expected: np.ndarray) -> None:
        self._expected = expected.astype(np.float64)
        self._squares = np.zeros(expected.shape)
        self._largest = np.zeros(expected.shape)
        self._norm = 0.0
        self.count = 0

    def add(self, values: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            apart = (values.astype(np.float64) - self._expected) / AMPLITUDE
            squares = np.where(np.isfinite(self._expected), np.square(apart), 0.0)
        squares = np.where(np.isnan(squares), np.inf, squares)
        self._squares += squares
        self._largest = np.maximum(self._largest, AMPLITUDE * np.sqrt(squares))
        self._norm += float(squares[np.isfinite(squares)].sum())
        self.count += 1

    def is_no_help(self, found: Tolerance, quantile: float) -> bool:
        """Return whether sampled runs bound the errors' norm no better than `found`."""
        norm = quantile * math.sqrt(self._norm / max(1, self.count))
        return self.count > 1 and norm >= found.l2_bound

    def narrowed(self, found: Tolerance, quantile: float) -> Tolerance:
        """Return `found` with the bounds from sampled runs where these are smaller. A
        bound from sampled runs is `quantile` times the root mean square of the runs'
        distances from the reference."""
        if found.bound is None or found.value.dtype.kind in "iub":
            return found
        scale = np.sqrt(self._squares / self.count)
        known = scale[np.isfinite(scale)]
        floor = _FLOOR * float(np.median(known)) if known.size else 0.0
        # Where a number may jump, a correct run may be as far off as a sampled run.
        elements = np.maximum(quantile * np.maximum(scale, floor), self._largest)
        norm = quantile * math.sqrt(self._norm / self.count)
        least = np.minimum(found.bound, elements)
        narrow = np.where(np.isfinite(found.value), least, found.bound)
        is_whole = np.isfinite(found.bound).all()  # else `l2_bound` omits elements
        l2 = min(found.l2_bound, norm) if is_whole else norm
        return Tolerance(found.value, narrow.astype(found.bound.dtype), l2, self.count)


def is_wide(found: Tolerance) -> bool:
    """Return whether the bounds in `found` are too wide to be useful."""
    value = found.value[np.isfinite(found.value)]
    if found.bound is None or value.dtype.kind in "iub" or not value.size:
        return False
    typical = float(np.sqrt(np.mean(np.square(value, dtype=np.float64))))
    return float(np.median(found.bound)) > _LITTLE * typical


def sharpened(
    found: Mapping[Key, Tolerance],
    run: Callable[[Draw], Iterable[tuple[Key, np.ndarray]]],
    samples: int | None,
    failure: float,
    *,
    usual: int = SAMPLES,
    ways: float = 1.0,
    is_batched: bool = False,
) -> dict[Key, Tolerance]:
    """Return tolerances narrowed by sampled runs.

    Args:
        found: the tolerances to narrow.
        run: executes the runs of a draw, and returns pairs (key of `found`, values).
        samples: number of runs; None means `usual` if a tolerance is wide, else 0.
        failure: probability that one correct element is refused.
        usual: number of runs that `samples=None` makes.
        ways: factor by which the errors of another algorithm for the same result may
            exceed those of this algorithm.
        is_batched: whether `run` executes several runs together. If so, and `samples`
            is None, `found` is returned if the first runs narrow no bound of a norm.
    """
    is_asked = samples is not None
    if samples is None:
        samples = usual if any(map(is_wide, found.values())) else 0
    if not samples:
        return dict(found)
    # Imported here because the import takes as long as a run of a small reference.
    from scipy.special import stdtrit

    quantile = -ways * float(stdtrit(samples, failure / 2))
    spreads = {key: Spread(t.value) for key, t in found.items()}
    draws = [Draw(samples, n) for n in range(0 if is_batched else samples)]
    draws += [Draw(samples, 0, samples)] if is_batched else []
    while draws:
        draw = draws.pop(0)
        try:
            for key, values in run(draw):
                spreads[key].add(values)
        except RunsApartError as apart:
            draws = [*draw.parts(*apart.args), *draws]
        if is_batched and draws and not is_asked:
            if all(s.is_no_help(found[key], quantile) for key, s in spreads.items()):
                return dict(found)
    return {key: s.narrowed(found[key], quantile) for key, s in spreads.items()}
