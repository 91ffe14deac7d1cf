"""What is wrong with a row's results, in words, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tests.conformance.table.case import (
    Case,
    Close,
    Exact,
    Sum,
    Ulp,
    beyond,
    exact_difference,
    is_float,
    unit,
)
from tests.conformance.table.evaluation import in_float64

UNIT_ROUNDOFF = 2.0**-24
Arrays = Sequence[np.ndarray]


def complaints(case: Case, got: Arrays, want: Arrays, source: str) -> Iterator[str]:
    """One line for every wrong result of a row against `source`'s."""
    if [(a.dtype, a.shape) for a in got] != [(a.dtype, a.shape) for a in want]:
        yield f"{case.name}: types {_types(got)}, {source} gives {_types(want)}"
        return
    wrong = _CHECKS[type(case.check)](case, got, want)
    for index, (bad, values, expected) in enumerate(
        zip(wrong, got, wanted(case, want), strict=True)
    ):
        if bad.any():
            yield _complaint(case, index, bad, values, expected, source)


def wanted(case: Case, want: Arrays) -> Arrays:
    """What a message shows as expected."""
    return in_float64(case) if isinstance(case.check, Ulp | Sum) else want


def _types(arrays: Arrays) -> str:
    return ", ".join(f"{a.dtype.name}{list(a.shape)}" for a in arrays)


def _complaint(case, index, bad, got, want, source) -> str:
    first = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(bad)))
    got, want = np.atleast_1d(got), np.atleast_1d(want)
    return (
        f"{case.name}: {bad.sum()} of {bad.size} elements of result {index} differ from"
        f" {source}; element {list(first)} is {got[first]!r}, expected {want[first]!r}"
    )


def _exact(case: Case, got: Arrays, want: Arrays) -> list[np.ndarray]:
    return [exact_difference(a, b) for a, b in zip(got, want, strict=True)]


def _ulp(case: Case, got: Arrays, want: Arrays) -> list[np.ndarray]:
    assert isinstance(case.check, Ulp)
    limit = case.check.limit
    return [
        _beyond(a, b, lambda part, dtype: limit * unit(part, dtype))
        for a, b in zip(got, in_float64(case), strict=True)
    ]


def _sum(case: Case, got: Arrays, want: Arrays) -> list[np.ndarray]:
    assert isinstance(case.check, Sum)
    terms = case.check.terms * UNIT_ROUNDOFF
    sizes = in_float64(case, magnitudes=True)
    return [
        _beyond(
            a,
            b,
            lambda part, dtype, size=size: (
                terms / (1 - terms) * np.abs(size) + unit(part, dtype)
            ),
        )
        for a, b, size in zip(got, in_float64(case), sizes, strict=True)
    ]


def _close(case: Case, got: Arrays, want: Arrays) -> list[np.ndarray]:
    assert isinstance(case.check, Close)
    rtol, atol = case.check.rtol, case.check.atol
    return [
        _beyond(a, _double(b), lambda part, dtype: rtol * np.abs(part) + atol)
        for a, b in zip(got, want, strict=True)
    ]


def _double(array: np.ndarray) -> np.ndarray:
    if not is_float(array.dtype):
        return array
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _beyond(got: np.ndarray, want: np.ndarray, allowed: Callable) -> np.ndarray:
    """Element by element; complex numbers by their parts, integers exactly."""
    if not is_float(got.dtype):
        return got != want
    if got.dtype.kind == "c":
        parts = [(got.real, want.real), (got.imag, want.imag)]
        scale = np.abs(want)
        return np.logical_or.reduce(
            [
                beyond(a, b, allowed(np.where(np.isfinite(scale), scale, b), a.dtype))
                for a, b in parts
            ]
        )
    with np.errstate(invalid="ignore"):
        return beyond(
            got, want, np.nan_to_num(allowed(want, got.dtype), nan=0.0, posinf=0.0)
        )


_CHECKS = {Exact: _exact, Ulp: _ulp, Sum: _sum, Close: _close}
