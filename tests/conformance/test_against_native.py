"""Where results differ from JAX on a host by more than roundings, and why.

Three operations of JAX's own catalogue of cases do; docs/contract.md explains them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import neuronjax as nj


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_running_sum_is_rounded_once(dtype):
    """JAX on a host adds pairs of rounded sums; a NeuronCore keeps the sum in FP32."""
    x = np.random.default_rng(0).standard_normal((64, 9)).astype(jnp.dtype(dtype))
    exact = np.cumsum(x.astype(np.float64), axis=0)
    got = np.asarray(nj.jit(lambda x: lax.cumsum(x))(x))
    half = np.abs(np.spacing(exact.astype(x.dtype)).astype(np.float64)) / 2
    assert (np.abs(got.astype(np.float64) - exact) <= half + 1e-5).all()
    native = np.asarray(jax.jit(lambda x: lax.cumsum(x))(x)).astype(np.float64)
    assert (np.abs(native - exact) > half + 1e-5).any()


def test_a_long_running_sum_is_one_fold():
    """Every prefix is what FP32 additions from the left make of it."""
    x = np.random.default_rng(1).standard_normal(5000).astype(np.float32)
    want = np.add.accumulate(x, dtype=np.float32)
    np.testing.assert_array_equal(nj.jit(jnp.cumsum)(x), want)


def test_equal_keys_stay_in_order():
    """Of a sort that need not be stable too, where a host may order them otherwise."""
    keys = np.random.default_rng(2).integers(-3, 3, 300).astype(np.int32)
    places = np.arange(300, dtype=np.int32)
    f = nj.jit(lambda k, p: lax.sort((k, p), is_stable=False, num_keys=1))
    _, got = f(keys, places)
    np.testing.assert_array_equal(got, np.argsort(keys, kind="stable"))


@pytest.mark.parametrize("n", [5, 120])
def test_a_cholesky_factor_is_as_good_as_a_hosts(n):
    """Factors of an ill-conditioned matrix differ by its condition, in their last
    columns; what they are factors of does not."""
    x = np.random.default_rng(3).standard_normal((n, n)).astype(np.float32)
    a = (x @ x.T).astype(np.float32)
    got = np.asarray(nj.jit(lambda a: lax.linalg.cholesky(a))(a)).astype(np.float64)
    size = np.abs(a).max()
    assert np.abs(got @ got.T - a).max() <= n * 2.0**-24 * size
    assert not np.triu(got, 1).any()
