"""Signs of faults that one run shows, without a more precise run to compare it with.

The predicates take numbers and arrays: NumPy's from `compare`, which looks at one
execution, and JAX's inside the compiled step of a run that counts statistics.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

#: A fault counts if at least this share of sums absorbs its addend.
MOSTLY = 0.5
#: A fault counts if more than this share of nonzero numbers underflows.
GONE = 0.9
#: A fault counts if at least this share of numbers is lost or clipped.
FEW = 0.05
#: Near a singularity these functions return Inf and amplify small errors.
SINGULAR = frozenset(
    "log log_plus_one divide rsqrt sqrt power tan atan2 cbrt acos acosh atanh asin "
    "erf_inv lgamma digamma remainder cholesky triangular_solve".split()
)
#: These functions turn finite FP32 numbers into Inf or NaN, and so do squares. A
#: division by a constant, a sum or a product does so only near the end of the range.
MAKERS = SINGULAR | {"exponential", "exponential_minus_one", "sinh", "cosh"}
#: These functions are zero only if they underflow: in float64, below this argument.
NEVER_ZERO = frozenset(("exponential", "logistic"))
LOWEST_EXPONENT = -745.0


class Finiteness(NamedTuple):
    """Two flags of an array: whether it has Inf or NaN, and whether it has NaN."""

    nonfinite: Any
    nan: Any


def makes_nonfinite(result: Finiteness, operands: Iterable[Finiteness]) -> Finiteness:
    """Return whether an op makes Inf or NaN of finite operands, and whether it makes
    NaN of operands without NaN."""
    of_finite, of_numbers = result
    for operand in operands:
        of_finite = of_finite & ~operand.nonfinite
        of_numbers = of_numbers & ~operand.nan
    return Finiteness(of_finite, of_numbers)


def nonfinite_kind(op: str, makes_nan: bool) -> str:
    """Return the name of the fault of an op that makes NaN or Inf."""
    if makes_nan:
        return "non-finite"
    return "singular" if op in SINGULAR else "overflow"


def absorption_kind(is_running: bool) -> str:
    """Return the name of the fault of a sum that loses most of what is added."""
    return "stagnation" if is_running else "absorption"
