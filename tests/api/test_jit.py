"""What `nj.jit` keeps and does not keep between calls."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj


@jax.jit
def squashed(x):
    return 2 * jnp.tanh(x)


PROGRAMS = {
    "calls": lambda x: squashed(squashed(x)).sum(),
    "loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, c: squashed(c), x).sum(),
    "branch": lambda x: jax.lax.cond(x.sum() > 0, squashed, jnp.negative, x).sum(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_tracer_outlives_its_trace(name):
    x = jnp.ones(4)
    emulated = nj.jit(PROGRAMS[name])
    with jax.checking_leaks():
        value, gradient = emulated(x), jax.grad(emulated)(x)
    np.testing.assert_allclose(value, PROGRAMS[name](x), rtol=1e-5)
    np.testing.assert_allclose(gradient, jax.grad(PROGRAMS[name])(x), rtol=1e-5)


def test_static_arguments_are_put_back_where_they_were():
    emulated = nj.jit(
        lambda scale, x, *, shift: scale * x + shift,
        static_argnums=0,
        static_argnames="shift",
    )
    np.testing.assert_array_equal(emulated(3, np.float32([1, 2]), shift=1), [4, 7])


def test_a_keyword_may_have_any_name():
    """Also that of what travels beside the arguments."""

    @nj.jit
    def scaled(x, *, context, around):
        return x * context + around - 1

    x = jnp.arange(3.0)
    found = scaled(x, context=2.0, around=x)
    assert found.tolist() == [-1.0, 2.0, 5.0]
    lowered = scaled.lower(x, context=2.0, around=x)
    assert lowered.compile()(x, context=2.0, around=x).tolist() == [-1, 2, 5]


def test_arguments_behind_static_ones_have_their_own_names():
    step = nj.jit(
        lambda n, params, k, x: (params["w"] @ x)[n:k],
        static_argnums=(0, 2),
        donate_argnums=1,
    )
    arguments = 0, {"w": jnp.ones((4, 4))}, 2, jnp.ones((4, 4))
    assert step.captured(*arguments).emulation.names == ("params/w", "x")
    names = [tensor.name for tensor in nj.profile(step)(*arguments).memory.arguments]
    assert names == ["params/w", "x"]
