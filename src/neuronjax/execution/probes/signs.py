"""The signs of a fault that a run shows by itself, without a finer run beside it.

Said once for `compare`, which looks at NumPy arrays of one execution, and for the
statistics of a run, which decide inside its compiled step: the predicates take numbers
and arrays of either.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

#: Share of sums that absorb an addend, from which on it counts.
MOSTLY = 0.5
#: Share of numbers that underflow, from which on nothing is left.
GONE = 0.9
#: Share of numbers that are lost or clipped, from which on it matters.
FEW = 0.05
#: Beside their singularity these make Inf, and of a small error a large one.
SINGULAR = frozenset(
    "log log_plus_one divide rsqrt sqrt power tan atan2 cbrt acos acosh atanh asin "
    "erf_inv lgamma digamma remainder cholesky triangular_solve".split()
)
#: These and squares make Inf or NaN of finite FP32 numbers, unless they scale by a
#: constant; sums and products do only of numbers near the end of the range already.
MAKERS = SINGULAR | {"exponential", "exponential_minus_one", "sinh", "cosh"}
#: Never zero, but by underflow; float64 underflows below this.
NEVER_ZERO = frozenset(("exponential", "logistic"))
LOWEST_EXPONENT = -745.0


class Finiteness(NamedTuple):
    """Whether an array has elements that are Inf or NaN, and that are NaN."""

    nonfinite: Any
    nan: Any


def makes_nonfinite(result: Finiteness, operands: Iterable[Finiteness]) -> Finiteness:
    """Whether an op makes Inf or NaN of finite numbers, and NaN of numbers."""
    of_finite, of_numbers = result
    for operand in operands:
        of_finite = of_finite & ~operand.nonfinite
        of_numbers = of_numbers & ~operand.nan
    return Finiteness(of_finite, of_numbers)


def nonfinite_kind(op: str, makes_nan: bool) -> str:
    """What an op is called that makes NaN, or else Inf."""
    if makes_nan:
        return "non-finite"
    return "singular" if op in SINGULAR else "overflow"


def absorption_kind(is_running: bool) -> str:
    """What a sum is called that leaves out most of what is added."""
    return "stagnation" if is_running else "absorption"
