"""Zeta and polygamma: accuracy, poles, and the same bits in every context.

The oracle is SciPy's zeta in float64; left of zero, values by mpmath.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from scipy import special

from neuronjax.numerics.elementary import MAX_ULP, SPECIAL
from neuronjax.numerics.exact import opaque_zero

INF, NAN = np.inf, np.nan
COUNT = 20_000


@functools.cache
def compiled(name: str) -> Callable[..., jax.Array]:
    return jax.jit(lambda x, y: SPECIAL[name](x, y, opaque_zero()))


def run(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Short arguments are repeated, so that one size is compiled."""
    padded = [np.resize(v.astype(np.float32), COUNT) for v in (x, y)]
    return np.asarray(compiled(name)(*padded))[: x.size]


def sample(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Orders and positive arguments, small and large."""
    rng = np.random.default_rng(1)
    near = np.where(rng.random(COUNT) < 0.5, 10 ** rng.uniform(-6, 1.5, COUNT), 1)
    order = 1 + near * rng.uniform(0.1, 40, COUNT)
    if name == "polygamma":
        order = rng.integers(1, 40, COUNT)
    wide = 10 ** rng.uniform(-4, 5, COUNT)
    argument = np.where(rng.random(COUNT) < 0.5, wide, rng.uniform(0.01, 30, COUNT))
    order = np.maximum(order.astype(np.float32), np.float32(1 + 2.0**-22))
    return order, argument.astype(np.float32)


def in_float64(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    x, y = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(all="ignore"):
        if name == "zeta":
            return special.zeta(x, y)
        return (-1.0) ** (x + 1) * special.factorial(x) * special.zeta(x + 1, y)


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECIAL)
def test_errors_stay_below_the_bound(name):
    x, y = sample(name)
    want = in_float64(name, x, y)
    regular = (np.abs(want) > 2.0**-125) & (np.abs(want) < 3e38)
    assert np.mean(regular) > 0.4
    x, y, want = (v[regular] for v in (x, y, want))
    unit = np.exp2(np.floor(np.log2(np.abs(want))) - 23)
    errors = np.abs(run(name, x, y) - want) / unit
    worst = int(np.argmax(errors))
    assert errors[worst] <= MAX_ULP[name], (x[worst], y[worst])


def test_orders_of_millions_beside_one():
    """Only the first term counts, and a base next to one is not 0 or Inf yet."""
    rng = np.random.default_rng(3)
    s = np.floor(2 ** rng.uniform(12, 33, COUNT)).astype(np.float32)
    q = (1 + rng.integers(-8, 9, COUNT) * 2.0**-24).astype(np.float32)
    with np.errstate(over="ignore"):
        want = np.exp(-s.astype(np.float64) * np.log1p(q.astype(np.float64) - 1))
    got = run("zeta", s, q)
    lasts = (want > 2.0**-125) & (want < 3e38)
    assert np.mean(lasts) > 0.4
    np.testing.assert_allclose(got[lasts], want[lasts], rtol=2.0**-22)
    np.testing.assert_array_equal(got[want < 2.0**-127], 0)
    np.testing.assert_array_equal(got[want > 3.5e38], INF)


#: By mpmath where finite.
VALUES = {
    "polygamma": [
        (1, -0.5, 8.934802200544679),
        (1, np.float32(-3.7), 14.842425149221057),
        (2, np.float32(-3.7), -68.89349135720681),
        (3, np.float32(-100.3), 768.9911928143803),
        (40, 10, -8327848.721661187),
        (60, 25, -0.00048740361349671466),
        (1, 0, INF),
        (1, -2, INF),
        (2, -2, NAN),
        (1, INF, 0),
        (1, NAN, NAN),
        (1.5, 1, NAN),
        (-1, 1, NAN),
        (101, 1, NAN),
        (0, 2.5, 0.7031566406452432),
        (1, 1e-30, INF),
    ],
    "zeta": [
        (2, 1, 1.6449340668482264),
        (2, -0.5, 8.934802200544679),
        (3, -0.5, 0.41439832211715997),
        (1, 2, INF),
        (0.5, 2, NAN),
        (2, 0, INF),
        (2, -1, INF),
        (3, -1, NAN),
        (2.5, -0.5, NAN),
        (INF, 1, 1),
        (INF, 2, 0),
        (INF, 0.5, INF),
        (2, INF, 0),
        (2, -INF, NAN),
        (1e10, 1, 1),
        (1e10, 0.9, INF),
        (2, 1e-30, INF),
        (NAN, 1, NAN),
    ],
}


@pytest.mark.slow_cases("zeta")
@pytest.mark.parametrize("name", SPECIAL)
def test_values_left_of_zero_and_poles(name):
    x, y, want = (np.array(column) for column in zip(*VALUES[name], strict=True))
    got = run(name, x, y)
    assert np.allclose(got, want, rtol=2e-6, atol=0, equal_nan=True), got


@pytest.mark.slow
@pytest.mark.parametrize("name", SPECIAL)
def test_the_same_bits_in_composition(name):
    x, y = (v[:64] for v in sample(name))
    want = run(name, x, y)

    def in_a_scan(x, y):
        zero = opaque_zero()

        def step(carry, row):
            value = SPECIAL[name](row[0], row[1], zero)
            return carry + value.sum(), value

        return lax.scan(step, jnp.float32(0), (x.reshape(4, -1), y.reshape(4, -1)))[1]

    def mapped(x, y):
        zero = opaque_zero()
        return jax.vmap(lambda a: SPECIAL[name](a[0], a[1], zero))(
            (x.reshape(4, 16), y.reshape(4, 16))
        ).reshape(-1)

    def with_constants(x, y):
        return SPECIAL[name](jnp.asarray(x), jnp.asarray(y), opaque_zero())

    want = want.view(np.uint32)
    for function in (mapped, in_a_scan):
        got = np.asarray(jax.jit(function)(x, y)).reshape(-1)
        assert np.array_equal(got.view(np.uint32), want), function
    constants = np.asarray(jax.jit(lambda: with_constants(x, y))())
    assert np.array_equal(constants.view(np.uint32), want)
