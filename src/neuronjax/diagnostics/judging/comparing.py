"""How far a candidate's results are from the reference's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from neuronjax.diagnostics.differences import alike
from neuronjax.diagnostics.judging.verdict import SeedVerdict
from neuronjax.diagnostics.tolerance import Judged, Tolerance
from neuronjax.diagnostics.tolerance.judged import flat_blocks, sum_of_squares


def compared(
    seed: int,
    actual: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    allowed: float | tuple[Tolerance, ...],
) -> SeedVerdict:
    """One comparison; the relative L2 error is that of the worst result.

    `allowed` is that error, as NKIBench has it (accelopt/eval_numpy.py), or a tolerance
    for every result."""
    shapes = [a.shape for a in actual], [e.shape for e in expected]
    if shapes[0] != shapes[1]:
        why = f"returns {_shown(shapes[0])} where the reference has {_shown(shapes[1])}"
        return SeedVerdict(
            seed=seed,
            correct=False,
            relative_l2=float("inf"),
            allowed=0.0,
            worst=None,
            why=why,
        )
    error, worst = _distance(actual, expected)
    if isinstance(allowed, tuple):
        most = max(t.largest_passing for t in allowed)
        judged = [t.check(a) for t, a in zip(allowed, actual, strict=True)]
        why = _beyond(judged)
        worst = worst and (_furthest(judged, actual, expected) or worst)
    else:
        most, why = allowed, _too_far(error, allowed, actual, expected)
    return SeedVerdict(
        seed=seed,
        correct=not why,
        relative_l2=error,
        allowed=most,
        worst=worst,
        why=why,
    )


def _too_far(
    error: float,
    allowed: float,
    actual: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
) -> str:
    if error <= allowed:
        return ""
    pairs = zip(actual, expected, strict=True)
    unset = sum(int((~_finite(a) & _finite(e)).sum()) for a, e in pairs)
    why = f"relative L2 {error:.3g}, allowed {allowed:.3g}"
    return f"{why}; {unset:,} elements are not finite" if unset else why


def _finite(x: np.ndarray) -> np.ndarray:
    return np.isfinite(x.astype(np.float64, copy=False))


def _beyond(judged: Sequence[Judged]) -> str:
    """What the first result that is wrong is wrong with; "" if none is."""
    for number, found in enumerate(judged):
        if found:
            continue
        which = f"result {number}: " if len(judged) > 1 else ""
        if not found.refused:
            l2, bound = found.relative_l2, found.relative_l2_bound
            return f"{which}relative L2 {l2:.3g}, at most {bound:.3g} if it were right"
        return (
            f"{which}{found.refused:,} of {found.elements:,} elements are further off "
            f"than any order of addition; the worst {found.times_bound:.3g} times"
        )
    return ""


def _furthest(
    judged: Sequence[Judged],
    actual: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
) -> dict[str, Any] | None:
    """The element with the largest error in bounds; None if none has any."""
    number = max(range(len(judged)), key=lambda n: judged[n].times_bound)
    found = judged[number]
    if not found.times_bound or found.worst is None:
        return None
    place = int(np.ravel_multi_index(found.worst, actual[number].shape))
    return _element(actual, expected, number, place)


def _distance(
    actual: Sequence[np.ndarray], expected: Sequence[np.ndarray]
) -> tuple[float, dict[str, Any] | None]:
    """The relative L2 error of the worst result, and the element that is furthest off,
    one that is not finite before all others.

    Elements on which both say the same Inf or NaN count as equal."""
    largest = furthest = 0.0
    found: tuple[int, int] | None = None
    for number, (a, e) in enumerate(zip(actual, expected, strict=True)):
        squares = norm = 0.0
        for start, off, size in _errors(a.reshape(-1), e.reshape(-1)):
            squares += sum_of_squares(off)
            norm += size
            place = int(off.argmax())
            if off[place] > furthest:
                furthest, found = float(off[place]), (number, start + place)
        largest = max(largest, _relative(squares, norm))
    return largest, None if found is None else _element(actual, expected, *found)


def _relative(squares: float, norm: float) -> float:
    if not np.isfinite(squares):
        return float("inf")
    return (squares / norm) ** 0.5 if norm else squares**0.5


def _errors(a: np.ndarray, e: np.ndarray) -> Iterator[tuple[int, np.ndarray, float]]:
    """Of blocks that fit the cache: the first element, errors, squares of `e`."""
    for block in flat_blocks(a.size):
        actual, wanted = a[block].astype(np.float64), e[block].astype(np.float64)
        with np.errstate(invalid="ignore"):
            off = np.abs(actual - wanted)
        off[alike(actual, wanted)] = 0.0
        off[np.isnan(off)] = np.inf
        wanted[~np.isfinite(wanted)] = 0.0
        yield block.start, off, sum_of_squares(wanted)


def _element(
    actual: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    number: int,
    place: int,
) -> dict[str, Any]:
    a, e = actual[number], expected[number]
    index = np.unravel_index(place, a.shape)
    return {
        "result": number,
        "index": [int(i) for i in index],
        "actual": float(a[index]),
        "expected": float(e[index]),
    }


def _shown(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(f"[{', '.join(map(str, s))}]" for s in shapes) or "nothing"
