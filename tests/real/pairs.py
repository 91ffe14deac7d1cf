"""The same construction around `nj.jit` and around `jax.jit`, and what they are fed."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from tests.conformance import bits
from tests.zoo.program import uniform

jitted = functools.partial(nj.jit, target="trn2", policy="fp32")

X = uniform(1, (3, 5))
W = uniform(2, (5, 4))
ROW = X[0]
KEY = jax.random.key(3)


def layer(x, w):
    """[..., 5] and [5, 4] to [..., 4]."""
    return jnp.tanh(x @ w) / (1 + jnp.square(w).sum(0))


def energy(x, w):
    """A scalar with derivatives of every order."""
    return jnp.sum(jnp.tanh(x @ w) ** 2)


def assert_close(actual, expected):
    """Same structure, dtypes and shapes; values within FP32 in another order."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    assert bits.shapes(actual) == bits.shapes(expected)
    wanted = bits.leaves(expected)
    for path, leaf in bits.leaves(actual).items():
        if leaf.dtype != jax.dtypes.float0:
            np.testing.assert_allclose(leaf, wanted[path], rtol=3e-5, atol=1e-6)


def agree(build, *args, **kwargs):
    """`build(nj.jit)` and `build(jax.jit)` on the same arguments."""
    out = bits.same_both_ways(build(jitted), *args, **kwargs)
    assert_close(out, build(jax.jit)(*args, **kwargs))
    return out
