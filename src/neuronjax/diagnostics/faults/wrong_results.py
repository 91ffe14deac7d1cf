"""The results of a run that are wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neuronjax.diagnostics.faults.judgement import (
    COARSE,
    HOPELESS,
    OF_DATA,
    OF_ONE_OP,
    UNSEEN_IN_ONE,
    excused,
    is_far,
    limit,
    loses_elements,
)
from neuronjax.diagnostics.faults.shares import (
    MOST_LOST,
    Seen,
    Share,
    root_mean_square,
    share_of,
)
from neuronjax.diagnostics.faults.state_steps import NEAR, StateStep, StateSteps
from neuronjax.ir.program import Region, Value


@dataclass(frozen=True)
class Wrong:
    """A result of main that is wrong.

    Attributes:
        index: the index among the results of main.
        how: "nonfinite", "far", "discrete", "chosen" or "lost", as in `WrongResult`.
        share: the result compared with its reference.
        allowed: the relative L2 error that roundings and perturbed data explain.
        unit: the roundoff of the coarsest format on which the result depends.
        step: the lost step (change) of a state; None if no step is lost.
    """

    index: int
    how: str
    share: Share
    allowed: float
    unit: float
    step: StateStep | None = None

    @property
    def is_doubtful(self) -> bool:
        """Return whether more perturbations of the data may excuse the error."""
        is_small = self.share.error <= HOPELESS or self.unit > COARSE
        return self.how != "nonfinite" and is_small


def wrong_results(
    main: Region,
    arguments: Sequence[np.ndarray],
    results: Sequence[Seen],
    units: Mapping[Value, float],
    is_chance: Callable[[Value, float, float], bool],
    is_costly: Callable[[Value, float], bool],
    is_choice: Callable[[Value], bool],
    increments: Callable[[Value, Value], bool],
    hands_on: Callable[[Value, Value], bool],
) -> Iterator[Wrong]:
    """Yield the results of a program's main that are wrong.

    `units` has the roundoff of the coarsest format on which each value depends. Given
    this roundoff, `is_costly` returns whether one op enlarged a small error; given the
    error of perturbed data too, `is_chance` returns whether the error of a value is due
    to chance. `is_choice` returns whether
    a whole number is an index or order and not a quantity; `increments`, whether a
    result is the argument of the same path plus a term; and `hands_on`,
    whether sums and scalings lead from an argument to a result.
    """
    coarsest = [units.get(value, 0.0) for value in main.results]
    pairs = zip(results, coarsest, strict=True)
    shares = [share_of(x, unit, excused(unit)) for x, unit in pairs]
    states = StateSteps(main.arguments, arguments, increments, hands_on)
    # A result may be all zeros in the reference, and not on perturbed data. Then a
    # choice between nearly equal numbers has changed, such as which head is the best,
    # and errors that the perturbed data explain are no faults.
    flips = any(math.isinf(share.data_error) for share in shares)
    for n, value in enumerate(main.results):
        if value in main.arguments:
            continue
        seen, share, unit = results[n], shares[n], coarsest[n]
        how, most = _how(seen, share, unit), HOPELESS
        if not how and is_costly(value, unit):
            how, most = "far", OF_ONE_OP if share.error > OF_ONE_OP else 0.0
        if how == "far" and states.is_incremented(value):
            how = ""  # the step of the state is judged instead
        step = None if how else states.lost_step(value, share, seen, results)
        may_be = how == "far" or (step is not None and step.may_be_noise)
        of_choice = flips and share.error <= OF_DATA * share.data_error
        if may_be and (of_choice or is_chance(value, unit, share.data_error)):
            continue
        if _is_whole(seen) and is_choice(value):
            changed = _changed(seen)
            how, share = "chosen" if changed else "", share._replace(lost=changed)
        if how or step:
            if step and not how:
                # A step as large as the state means that the state began at zero.
                how = "lost" if step.size < NEAR else "far"
            least = UNSEEN_IN_ONE * (share.elements == 1)
            allowed = max(limit(share, unit, most), least)
            yield Wrong(n, how, share, allowed, unit, step)


def _how(seen: Seen, share: Share, unit: float) -> str:
    if _is_whole(seen):
        return "discrete" if loses_elements(share) else ""
    if share.nonfinite:
        return "nonfinite"
    is_seen = share.elements > 1 or share.error > UNSEEN_IN_ONE
    return "far" if is_seen and is_far(share, unit) else ""


def _changed(seen: Seen) -> float:
    """Return the share of choices that differ from the reference; 0 if few choices do,
    or perturbed data change about as many."""
    changed = float(np.mean(seen.actual != seen.reference))
    draws = [float(np.mean(p != seen.reference)) for p in seen.perturbed]
    most = max(MOST_LOST, OF_DATA * root_mean_square(draws))
    return changed if changed > most else 0.0


def _is_whole(seen: Seen) -> bool:
    return seen.dtype.kind in "iub"
