"""The results of a run that are wrong."""

from __future__ import annotations

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
from neuronjax.diagnostics.faults.shares import MOST_LOST, Seen, Share, share_of
from neuronjax.diagnostics.faults.state_steps import StateStep, StateSteps
from neuronjax.ir.program import Region, Value

#: A result this much smaller than another may be nothing beside it.
NOTHING_BESIDE = 1e-6


@dataclass(frozen=True)
class Wrong:
    """A result of main that is wrong.

    Attributes:
        index: among the results.
        how: "nonfinite", "far", "discrete", "chosen" or "lost".
        share: its figures.
        allowed: the relative L2 error that its formats and data explain.
        step: of a lost update.
    """

    index: int
    how: str
    share: Share
    allowed: float
    step: StateStep | None = None


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
    pairs = zip(results, coarsest, strict=True)
    shares = [share_of(x, unit, excused(unit)) for x, unit in pairs]
    pairs = zip(shares, results, strict=True)
    typical = max((s.norm for s, x in pairs if not _is_whole(x)), default=0.0)
    states = StateSteps(main.arguments, arguments)
    for n, value in enumerate(main.results):
        if value in main.arguments:
            continue
        seen, share, unit = results[n], shares[n], coarsest[n]
        how = _how(seen, share, unit, typical)
        step = None if how else states.lost_step(value, share, seen, results)
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
