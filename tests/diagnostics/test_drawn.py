"""Runs with drawn errors: bounds that stay small where those by slopes grow."""

import numpy as np
import pytest

from neuronjax.diagnostics.tolerance import error_bounds
from neuronjax.diagnostics.tolerance.drawn import Spread
from neuronjax.diagnostics.tolerance.judged import Tolerance
from tests.arrays import normal


def newton_schulz(a):
    x = a
    for _ in range(5):
        g = x @ x.T
        x = 3.4445 * x + (-4.7750 * g + 2.0315 * g @ g) @ x
    return x


def contraction(x):
    s = np.zeros_like(x[0])
    for row in x:
        s = s - 0.9 * (s - row)
    return s


def turns(x):
    """Each turn cancels what it adds."""
    s = x
    for _ in range(40):
        s = s + x * 3 - s * 2
    return s


_SQUARE = normal(24, 24)
DEEP = {
    "Newton-Schulz": (newton_schulz, _SQUARE / np.linalg.norm(_SQUARE), 1e3, 0.02),
    "contraction": (contraction, normal(128, 64), 1e20, 1e-4),
    "turns": (turns, normal(64), 1e9, 1e-3),
}


@pytest.mark.parametrize("name", DEEP)
def test_what_is_deep_is_bounded(name):
    function, x, least, most = DEEP[name]
    slopes = error_bounds(function, [x], samples=0)
    drawn = error_bounds(function, [x])
    assert slopes.largest_passing > least
    assert 1e-7 < drawn.largest_passing < most
    assert (slopes.runs, drawn.runs) == (0, 16)
    assert drawn.check(function(x))
    assert np.all(drawn.bound <= slopes.bound)
    assert drawn.l2_bound == error_bounds(function, [x]).l2_bound


def test_what_is_shallow_is_not_drawn():
    assert error_bounds(lambda x: x @ x.T, [normal(8, 8)]).runs == 0


@pytest.mark.slow
def test_several_results_and_integers():
    def both(x):
        return {"s": contraction(x), "n": x.argmax(0), "t": (x[0] * 2, 3.0)}

    found = error_bounds(both, [normal(128, 8)])
    assert found["s"].bound.max() < 1e-4
    assert not found["n"].bound.any()
    assert [t.value.shape for t in found["t"]] == [(8,), ()]


def test_a_number_that_jumps_is_bounded_by_the_jump():
    spread = Spread(np.zeros(2))
    for sign in (1, -1):
        spread.add(np.asarray([1.0, 4.0 * sign]))
    wide = Tolerance(np.zeros(2), np.full(2, np.inf, np.float32), np.inf)
    found = spread.narrowed(wide, 0.5, 1.0)
    assert found.bound is not None
    assert found.bound[1] >= 4.0
    assert found.runs == 2
