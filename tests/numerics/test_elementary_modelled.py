"""ScalarE's sine, modelled: a cubic beyond -pi..pi, of which one point is known."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neuronjax.numerics.elementary_trigonometric import sin, sin_as_scalar_engine
from neuronjax.numerics.exact import opaque_zero, seal

X = np.random.default_rng(0).uniform(-40, 40, 999).astype(np.float32)


def alone(x: np.ndarray) -> np.ndarray:
    return np.asarray(jax.jit(lambda x: sin_as_scalar_engine(x, opaque_zero()))(x))


def assert_same_bits(got: jax.Array, want: np.ndarray) -> None:
    np.testing.assert_array_equal(np.asarray(got).view(np.uint32), want.view(np.uint32))


def test_the_published_point():
    got = alone(np.float32([9, -9])).tolist()
    assert got == pytest.approx([27.65, -27.65], abs=0.01)


def test_inside_it_is_the_sine_bit_for_bit():
    edge = np.float32(math.pi)
    x = np.concatenate([X / 13, [edge, -edge, 0.0, -0.0, 1e-39]]).astype(np.float32)
    assert_same_bits(jax.jit(lambda x: sin(x, opaque_zero()))(x), alone(x))


def test_outside_it_is_the_cubic():
    x = X[np.abs(X) > np.float32(math.pi)]
    beyond = np.abs(x.astype(np.float64)) - np.float32(math.pi)
    want = np.copysign(1, x) * (beyond**3 / 6 - beyond)
    np.testing.assert_allclose(alone(x), want, rtol=1e-6, atol=1e-6)


def test_specials_and_a_continuous_edge():
    got = alone(np.float32([np.inf, -np.inf, np.nan, 3.1415930]))
    assert got[:2].tolist() == [np.inf, -np.inf]
    assert got[2:3].view(np.uint32) == 0x7FC00000
    assert abs(got[3]) < 1e-6


@pytest.mark.slow
def test_bits_are_the_same_in_a_scan_and_op_by_op():
    def scanned(x: jax.Array) -> jax.Array:
        zero = opaque_zero()

        def step(carry: jax.Array, row: jax.Array):
            result = seal(sin_as_scalar_engine(row, zero), zero)
            return carry + jnp.sum(result) * np.float32(0.7), result

        return lax.scan(step, jnp.float32(0), x)[1]

    want = alone(X)
    got = jax.jit(scanned)(X.reshape(27, 37)).ravel()
    zero = opaque_zero()
    with jax.disable_jit():
        eager = sin_as_scalar_engine(jnp.asarray(X), zero)
    assert_same_bits(got, want)
    assert_same_bits(eager, want)
