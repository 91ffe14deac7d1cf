"""The results of a run that are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from neuronjax.diagnostics.faults.judgement import (
    HOPELESS,
    OF_DATA,
    excused,
    is_far,
    limit,
    loses_elements,
)
from neuronjax.diagnostics.faults.perturbation import unit_of
from neuronjax.diagnostics.faults.shares import MOST_LOST, Seen, Share, share_of, wide
from neuronjax.diagnostics.op_errors import blocks_of, in_parts
from neuronjax.ir.program import Region, Value

#: A result this much smaller than another may be nothing beside it.
NOTHING_BESIDE = 1e-6
#: Share of an update that is lost, from which on a state has not moved as it should.
LOST_UPDATE = 0.5
#: A result is an update of an argument if it is as near to it as this.
NEAR = 0.3
#: A step that is smaller than this, over its state, is float64's rounding.
NOISE = 2.0**-44


@dataclass(frozen=True)
class Wrong:
    """A result of main that is wrong.

    Attributes:
        index: among the results.
        how: "nonfinite", "far", "discrete", "chosen" or "lost".
        share: its figures.
        allowed: the relative L2 error that its formats and data explain.
        step: of a lost update, its norm over the argument's.
    """

    index: int
    how: str
    share: Share
    allowed: float
    step: float = 0.0


def wrong_results(
    main: Region,
    arguments: Sequence[np.ndarray],
    results: Sequence[Seen],
    units: Mapping[Value, float],
    is_noise: Callable[[Value], bool],
    is_choice: Callable[[Value], bool],
) -> Iterator[Wrong]:
    """Of a program's main, by what its results should be.

    Args:
        main: the entry function's body.
        arguments: of main, as they were given.
        results: of main.
        units: of every value, the coarsest format on the way to it.
        is_noise: whether a value is what rounding left in the reference.
        is_choice: whether a whole number is one of several, and no quantity.
    """
    coarsest = [units.get(value, 0.0) for value in main.results]
    with np.errstate(all="ignore"):
        pairs = zip(results, coarsest, strict=True)
        shares = [share_of(x, unit, excused(unit)) for x, unit in pairs]
        pairs = zip(shares, results, strict=True)
        typical = max((s.norm for s, x in pairs if not _is_whole(x)), default=0.0)
        states = _States(main.arguments, arguments)
        for n, value in enumerate(main.results):
            if value in main.arguments:
                continue
            seen, share, unit = results[n], shares[n], coarsest[n]
            how = _how(seen, share, unit, typical)
            step = 0.0 if how else _lost_step(states, value, share, seen, results)
            if how == "far" and is_noise(value):
                continue
            if _is_whole(seen) and is_choice(value):
                changed = _changed(seen)
                how, share = "chosen" if changed else "", replace(share, lost=changed)
            if how or step:
                yield Wrong(n, how or "lost", share, limit(share, unit), step)


def _how(seen: Seen, share: Share, unit: float, typical: float) -> str:
    if _is_whole(seen):
        return "discrete" if loses_elements(share) else ""
    if share.nonfinite:
        return "nonfinite"
    # What should be zero, like the gradient of a bias before a softmax, is noise in
    # float64 too; perturbed data then make another noise of it.
    is_noise = share.norm < NOTHING_BESIDE * typical and share.data_error > HOPELESS
    if not is_noise and (is_far(share, unit) or loses_elements(share)):
        return "far"
    return ""


def _changed(seen: Seen) -> float:
    """The share of choices that fell otherwise; 0 where few did, or as many might by
    perturbed data."""
    changed = float(np.mean(seen.actual != seen.reference))
    by_data = 0.0
    if seen.perturbed is not None:
        by_data = float(np.mean(seen.perturbed != seen.reference))
    return changed if changed > max(MOST_LOST, OF_DATA * by_data) else 0.0


def _is_whole(seen: Seen) -> bool:
    return seen.dtype.kind in "iub"


def norm(x: np.ndarray) -> float:
    """L2, of the finite elements."""

    def square(x: np.ndarray) -> float:
        total = 0.0
        for [block] in blocks_of(x):
            numbers = wide(block)
            more = float(numbers @ numbers)
            if not math.isfinite(more):
                numbers = np.where(np.isfinite(numbers), numbers, 0.0)
                more = float(numbers @ numbers)
            total += more
        return total

    return math.sqrt(sum(in_parts(square, x)))


class _States:
    """The arguments of main, each of which a result may be the next value of."""

    def __init__(
        self, values: Sequence[Value], arguments: Sequence[np.ndarray]
    ) -> None:
        self._values = values
        self._arguments = [np.asarray(x) for x in arguments]
        self._norms: dict[int, float] = {}

    def steps(self, value: Value, reference: np.ndarray) -> Iterator[tuple[float, ...]]:
        """(norm of a state, norm of the step), where the step is much smaller."""
        for n, entry in enumerate(self._values):
            if entry.type != value.type:
                continue
            if n not in self._norms:
                self._norms[n] = norm(self._arguments[n])
            size = self._norms[n]
            step = _distance(self._arguments[n], reference, NEAR * size)
            if step < NEAR * size:
                yield size, step


def _distance(before: np.ndarray, after: np.ndarray, enough: float) -> float:
    """L2, of the finite elements, or more than enough."""
    total = 0.0
    for x, y in blocks_of(before.reshape(-1), after.reshape(-1)):
        step = y - wide(x)
        more = float(step @ step)
        total += more if math.isfinite(more) else norm(step) ** 2
        if total > enough * enough:
            break
    return math.sqrt(total)


def _lost_step(
    states: _States, value: Value, share: Share, seen: Seen, results: Sequence[Seen]
) -> float:
    """Of a result that is a state's next value: the step, if it was not taken."""
    if _is_whole(seen) or not share.elements:
        return 0.0
    error = share.error * share.norm * math.sqrt(share.elements)
    for size, step in states.steps(value, np.asarray(seen.reference)):
        is_lost = NOISE * size < step and error > LOST_UPDATE * step
        if is_lost and not _is_copy(seen, results):
            return step / size
    return 0.0


def _is_copy(seen: Seen, results: Sequence[Seen]) -> bool:
    """Whether a finer result holds the same state, as the master of a BF16 copy."""
    reference = np.asarray(seen.reference)
    unit = unit_of(seen.dtype)
    return any(
        np.shape(other.reference) == reference.shape
        and 0 < unit_of(other.dtype) < unit
        and norm(np.asarray(other.reference) - reference) <= unit * norm(reference)
        for other in results
    )
