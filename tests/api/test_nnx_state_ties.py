"""A variable that two modules share is one argument, with one gradient.

The oracle is `nnx.jit`, which knows what is shared.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import neuronjax as nj
from neuronjax.api.nnx_state import in_place, tied, untied

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 64, (4, 16)), jnp.int32)
FP32 = nj.Policy.preset("fp32")


class Head(nnx.Module):
    def __init__(self, weight):
        self.weight = weight

    def __call__(self, x):
        return x @ self.weight[...].T


class Model(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(64, 32, rngs=rngs)
        self.up = nnx.Linear(32, 32, rngs=rngs)
        self.head = Head(self.embed.embedding)

    def __call__(self, tokens):
        return self.head(jnp.tanh(self.up(self.embed(tokens))))


def step(model, optimizer, tokens):
    def loss(model):
        losses = optax.softmax_cross_entropy_with_integer_labels(model(tokens), tokens)
        return losses.mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value


def made():
    model = Model(nnx.Rngs(0))
    return model, nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)


@pytest.mark.slow_cases("plain")
@pytest.mark.parametrize("jitted", [step, nnx.jit(step)], ids=["plain", "nnx.jit"])
def test_a_report_has_a_shared_variable_once(jitted):
    profiled = nj.profile(jitted, target="trn2", policy="bf16")(*made(), TOKENS)
    names = [tensor.name for tensor in profiled.memory.arguments]
    assert sum("embedding" in name and "model" in name for name in names) == 1
    assert not any("head" in name for name in names)
    assert "head" not in " ".join(profiled.by_module())


@pytest.mark.slow
def test_its_gradient_is_that_of_both_uses():
    native, emulated = made(), made()
    nnx.jit(step)(*native, TOKENS)
    run = nj.jit(step, target="trn2", policy=FP32).reported()
    in_place(run, step)(*emulated, TOKENS)
    assert emulated[0].head.weight is emulated[0].embed.embedding
    want, got = (nnx.state(each[0], nnx.Param) for each in (native, emulated))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), want, got)


@pytest.mark.slow
def test_outputs_of_a_profile_are_computed():
    profiled = nj.profile(nnx.jit(step), target="trn2", policy=FP32)(*made(), TOKENS)
    native = nnx.jit(step)(*made(), TOKENS)
    np.testing.assert_allclose(profiled.outputs.result, native, rtol=1e-5)


@pytest.mark.slow
def test_a_search_runs_it():
    search = nj.search_precision(step, target="trn2", tolerance=1.0, progress=False)
    found = search(*made(), TOKENS)
    assert found.evaluations >= 2


def test_ties_go_and_come():
    model, optimizer = made()
    once = tied((model, optimizer))
    assert len(jax.tree.leaves(once)) == len(jax.tree.leaves((model, optimizer))) - 1
    again, _ = untied(once)
    assert again.head.weight is again.embed.embedding


def test_what_is_not_shared_is_as_it_was():
    arguments = (nnx.Linear(2, 2, rngs=nnx.Rngs(0)), {"x": jnp.ones(3)}, 5)
    assert tied(arguments) is arguments
    assert untied(arguments) is arguments


@pytest.mark.slow
def test_a_state_may_be_given_twice():
    """A target network is the online one at first; both are plain pytrees."""
    graph, state = nnx.split(nnx.Linear(4, 4, rngs=nnx.Rngs(0)))

    def loss(online, target, x):
        return ((nnx.merge(graph, online)(x) - nnx.merge(graph, target)(x)) ** 2).mean()

    x = np.ones((2, 4), np.float32)
    assert not nj.compare(loss, policy="fp32")(state, state, x).faults
    names = {t.name for t in nj.profile(loss)(state, state, x).memory.arguments}
    assert {"online/kernel/value", "target/kernel/value"} <= names
