"""lgamma and digamma at their zeros, against mpmath: the bound that holds everywhere.

Left of 0 an error is one of the terms that cancel there, so it is small beside 1 and
the function's value at |x|, and not beside the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import mpmath
import numpy as np
import pytest
import scipy.special

from neuronjax.numerics.elementary import MAX_ULP, UNARY
from neuronjax.numerics.exact import opaque_zero

EXACT: dict[str, Callable[[Any], Any]] = {
    "lgamma": lambda x: mpmath.log(abs(mpmath.gamma(x))),
    "digamma": mpmath.digamma,
}
FLOAT64 = {"lgamma": scipy.special.gammaln, "digamma": scipy.special.psi}
LEFT_ZEROS = {
    "lgamma": [
        *(-2.4570247, -2.7476826, -3.1435809, -3.9552943, -4.0393618, -4.9915446),
        *(-5.0082182, -5.9986075, -6.0013853, -6.9998015, -7.0001983, -8.0000248),
    ],
    "digamma": [
        *(-0.504083, -1.5734985, -2.6107209, -3.6352934, -4.6532378, -5.6671624),
        *(-6.6784182, -7.6877883, -8.6957642, -9.7026725, -10.7087408, -11.7141331),
    ],
}
RIGHT_ZEROS = {"lgamma": [1.0, 2.0], "digamma": [1.4616321]}


def ours(name: str, x: np.ndarray) -> np.ndarray:
    run = jax.jit(lambda x: UNARY[name](x, opaque_zero()))
    return np.asarray(run(x)).astype(np.float64)


def neighbours(x: float, count: int = 100) -> np.ndarray:
    codes = np.float32(x).view(np.int32) + np.arange(-count, count + 1, dtype=np.int32)
    found = codes.view(np.float32)
    return found[found != np.round(found)]


def exact(name: str, x: np.ndarray) -> np.ndarray:
    with mpmath.workprec(120):
        return np.array([float(EXACT[name](mpmath.mpf(float(v)))) for v in x])


def allowed(name: str, x: np.ndarray, want: np.ndarray) -> np.ndarray:
    """What docs/exactness.md states."""
    at_mirror = np.abs(FLOAT64[name](np.abs(x.astype(np.float64))))
    terms = np.where(x < 0, np.maximum(1, at_mirror), 0)
    return MAX_ULP[name] * 2.0**-23 * np.maximum(np.abs(want), terms)


@pytest.mark.slow_except("digamma")
@pytest.mark.parametrize("name", EXACT)
def test_error_near_zeros_left_of_the_origin_is_bounded(name):
    for zero in LEFT_ZEROS[name]:
        x = neighbours(zero)
        want = exact(name, x)
        assert (want > 0).any()
        assert (want < 0).any()
        assert (np.abs(ours(name, x) - want) <= allowed(name, x, want)).all(), zero


@pytest.mark.parametrize("name", EXACT)
def test_relative_error_near_positive_zeros_is_bounded(name):
    """Relative to the result, however small it is."""
    for zero in RIGHT_ZEROS[name]:
        x = neighbours(zero)
        want = exact(name, x)
        error = np.abs(ours(name, x) - want)
        assert (error <= MAX_ULP[name] * 2.0**-23 * np.abs(want)).all(), zero


def test_left_of_zero_no_relative_bound_holds():
    """Why an absolute one is stated: one FP32 number has the other sign."""
    x = neighbours(-2.6107209)
    want = exact("digamma", x)
    assert (np.sign(ours("digamma", x)) != np.sign(want)).sum() == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", EXACT)
def test_every_number_where_terms_cancel(name):
    """From -16 to -1/4, against float64."""
    first, last = (int(np.float32(v).view(np.uint32)) for v in (-0.25, -16))
    for start in range(first, last, 1 << 22):
        codes = np.arange(start, min(start + (1 << 22), last), dtype=np.uint32)
        x = codes.view(np.float32)
        x = x[x != np.round(x)]
        want = FLOAT64[name](x.astype(np.float64))
        assert (np.abs(ours(name, x) - want) <= allowed(name, x, want)).all()
