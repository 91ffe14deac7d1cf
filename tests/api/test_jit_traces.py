"""What `nj.jit` keeps of a trace, as `jax.jit` does: metadata, and unused arguments."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.training.train_state import TrainState
from jax.sharding import NamedSharding, PartitionSpec as P, use_abstract_mesh

import neuronjax as nj

MESH = nj.make_mesh((2,), ("x",))


def with_optimizer(make):
    def init(key):
        params = {"w": jax.random.normal(key, (4, 2)), "b": jnp.zeros(2)}
        return TrainState.create(apply_fn=None, params=params, tx=make())

    return init


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: optax.adam(1e-3),
        lambda: optax.chain(optax.clip(1.0), optax.sgd(lambda step: 0.1, 0.9)),
    ],
    ids=["adam", "chain"],
)
@pytest.mark.parametrize("over", [NamedSharding(MESH, P()), P("x")], ids=str)
def test_a_state_with_an_optimizer_has_the_structure_that_was_asked_for(make, over):
    """A second trace of `init` makes other functions, which are part of the state."""
    init, key = with_optimizer(make), jax.random.key(0)
    with use_abstract_mesh(MESH):
        abstract = jax.eval_shape(init, key)
        shardings = jax.tree.map(lambda x: over if x.ndim else P(), abstract)
        state = nj.jit(init, out_shardings=shardings)(key)
        step = nj.jit(lambda s: s.replace(step=s.step + 1), in_shardings=(shardings,))
        after = step(state)
    want = init(key)
    assert jax.tree.structure(state) == jax.tree.structure(abstract)
    assert int(after.step) == 1
    found, expected = (np.asarray(s.params["w"]) for s in (state, want))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("shardings", [{}, {"in_shardings": NamedSharding(MESH, P())}])
def test_a_type_in_the_place_of_an_array_that_nobody_reads(shardings):
    def draw(key, like, scale):
        return scale * jax.random.normal(key, like["x"].shape)

    like = {"x": jax.ShapeDtypeStruct((3, 2), jnp.bfloat16)}
    key = jax.random.key(1)
    emulated = nj.jit(draw, **shardings)
    expected = 2 * jax.random.normal(key, (3, 2))
    np.testing.assert_allclose(emulated(key, like, 2.0), expected, rtol=1e-5)
    with jax.disable_jit():
        np.testing.assert_allclose(emulated(key, like, 2.0), expected, rtol=1e-5)
    gradient = jax.grad(lambda scale: emulated(key, like, scale).sum())(2.0)
    np.testing.assert_allclose(gradient, expected.sum() / 2, rtol=1e-5)


def test_a_type_that_is_read_is_refused():
    with pytest.raises(TypeError, match="ShapeDtypeStruct"):
        nj.jit(lambda x: x + 1)(jax.ShapeDtypeStruct((2,), jnp.float32))


def test_the_gradient_of_an_argument_that_nobody_reads_is_zero():
    emulated = nj.jit(lambda x, y: x.sum())
    gradient = jax.grad(emulated, 1)(jnp.ones(3), jnp.ones((2, 2)))
    np.testing.assert_array_equal(gradient, np.zeros((2, 2)))
