"""The results of a run that are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neuronjax.diagnostics.faults.evidence import Seen, Share, share_of
from neuronjax.diagnostics.faults.judgement import (
    HOPELESS,
    is_far,
    limit,
    loses_elements,
)
from neuronjax.diagnostics.faults.perturbation import unit_of
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
        how: "nonfinite", "far", "discrete" or "lost".
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
) -> Iterator[Wrong]:
    """Of a program's main, by what its results should be.

    Args:
        main: the entry function's body.
        arguments: of main, as they were given.
        results: of main.
        units: of every value, the coarsest format on the way to it.
        is_noise: whether a value is what rounding left in the reference.
    """
    typical = max((_rms(x) for x in results if not _is_whole(x)), default=0.0)
    for n, (value, seen) in enumerate(zip(main.results, results, strict=True)):
        if value in main.arguments:
            continue
        unit = units.get(value, 0.0)
        with np.errstate(all="ignore"):
            share = share_of(seen, unit)
            how = _how(seen, share, unit, typical)
            step = 0.0 if how else _lost_step(main, arguments, n, results)
        if how == "far" and is_noise(value):
            continue
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


def _is_whole(seen: Seen) -> bool:
    return seen.dtype.kind in "iub"


def _rms(seen: Seen) -> float:
    return norm(np.asarray(seen.reference)) / max(1, np.size(seen.reference)) ** 0.5


def norm(x: np.ndarray) -> float:
    """L2, of the finite elements."""
    finite = np.where(np.isfinite(x), x, 0.0).reshape(-1)
    return float(np.sqrt(finite @ finite))


def _lost_step(
    main: Region, arguments: Sequence[np.ndarray], n: int, results: Sequence[Seen]
) -> float:
    """Of a result that is a state's next value: the step, if it was not taken."""
    seen, value = results[n], main.results[n]
    reference = np.asarray(seen.reference)
    if _is_whole(seen) or not reference.size or _is_copy(seen, results):
        return 0.0
    error = norm(np.asarray(seen.actual).astype(np.float64) - reference)
    for argument, entry in zip(arguments, main.arguments, strict=True):
        if entry.type != value.type:
            continue
        before = np.asarray(argument).astype(np.float64)
        size, step = norm(before), norm(reference - before)
        if NOISE * size < step < NEAR * size and error > LOST_UPDATE * step:
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
