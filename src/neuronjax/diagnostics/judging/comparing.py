"""The comparison of a candidate kernel's results with tolerances."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuronjax.diagnostics.judging.verdict import DECIDES, SeedVerdict, TriedMutant
from neuronjax.diagnostics.tolerance import Judged, Tolerance


def compared(
    seed: int, actual: Sequence[np.ndarray], allowed: Sequence[Tolerance]
) -> SeedVerdict:
    """Compare the results `actual` for `seed` with the tolerances `allowed`."""
    shapes = [a.shape for a in actual], [t.value.shape for t in allowed]
    if shapes[0] != shapes[1]:
        why = f"returns {_shown(shapes[0])}; the reference returns {_shown(shapes[1])}"
        return SeedVerdict(
            seed=seed,
            correct=False,
            relative_l2=float("inf"),
            allowed=0.0,
            worst=None,
            why=why,
        )
    judged = [t.check(a) for t, a in zip(allowed, actual, strict=True)]
    most = max(t.largest_passing for t in allowed)
    error = max(j.distance for j in judged)
    number, place, why = _to_show(judged, allowed, max(most, error) <= DECIDES)
    worst = None
    if error and place is not None:
        worst = {
            "result": number,
            "index": [*place],
            "actual": float(actual[number][place]),
            "expected": float(np.float32(allowed[number].value[place])),
        }
    return SeedVerdict(
        seed=seed,
        correct=not why,
        relative_l2=error,
        allowed=most,
        worst=worst,
        why=why,
    )


def decided(
    done: Sequence[SeedVerdict], tried: Sequence[TriedMutant]
) -> tuple[bool | None, str]:
    """Return (whether all comparisons in `done` pass, ""). If they pass, but large
    errors or a mutant in `tried` that does nothing also pass, return (None, reason)."""
    if not all(s.correct for s in done):
        return False, ""
    # Errors of elements without a bound may make `relative_l2` exceed `allowed`.
    most = max(max(s.allowed, s.relative_l2) for s in done)
    if most > DECIDES:
        return None, (
            f"The tolerance is too wide: an error of {most:.3g} times the result's "
            f"norm passes. A verdict needs a tolerance up to {DECIDES:g}. Give "
            "the loops of the reference and of the kernel fewer iterations, or give "
            "the relative L2 error that you allow: tolerance=0.02"
        )
    passed = [m for m in tried if m.does_nothing and not m.caught]
    if passed:
        least = min(passed, key=lambda m: m.relative_l2)
        return None, (
            f"A kernel that does nothing would have passed: {least.what}. Give a "
            "tolerance below the relative L2 error of such a kernel: "
            f"tolerance={least.relative_l2 / 10:.0e}"
        )
    return True, ""


def _to_show(
    judged: Sequence[Judged], allowed: Sequence[Tolerance], is_decided: bool
) -> tuple[int, tuple[int, ...] | None, str]:
    """Return (number of the result to show, its worst index, what is wrong in it)."""
    number, found = next(((n, j) for n, j in enumerate(judged) if not j), (0, None))
    if found is not None:
        which = f"result {number}: " if len(judged) > 1 else ""
        if found.refused:
            why = f"{found.refused:,} of {found.elements:,} elements are further off "
            why += "than any order of addition explains; the largest error is "
            why += f"{found.times_bound:.3g} times its bound"
            return number, found.worst, f"{which}{why}"
        l2, most = found.relative_l2, found.relative_l2_bound
        why = f"{which}relative L2 {l2:.3g}; a correct result has at most {most:.3g}"
        if allowed[number].bound is None:
            why = f"{which}relative L2 {l2:.3g}, allowed {most:.3g}"
            if found.non_finite:
                why += f"; {found.non_finite:,} elements are not finite"
        return number, found.furthest, why
    by_elements = is_decided and all(t.bound is not None for t in allowed)
    by_elements = by_elements and any(found.times_bound for found in judged)
    off = [found.times_bound if by_elements else found.distance for found in judged]
    number = off.index(max(off))
    place = judged[number].worst if by_elements else judged[number].furthest
    return number, place, ""


def _shown(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(f"[{', '.join(map(str, s))}]" for s in shapes) or "nothing"
