"""Groups and rules by the part of the model, by the names that reports have."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import neuronjax as nj

X = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)


class Block(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(16, 32, rngs=rngs)
        self.down = nnx.Linear(32, 16, rngs=rngs)

    def __call__(self, x):
        mixed = jnp.tanh(x @ x.T) @ x  # of no parameter, and of the block
        return x + self.down(jax.nn.gelu(self.up(mixed)))


class Net(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])
        self.head = nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


GRAPH, STATE = nnx.split(Net(nnx.Rngs(0)))


def loss(state, x):
    return (nnx.merge(GRAPH, state)(x) ** 2).mean()


def forms(step, *args):
    """By module, the formats of what its matmuls multiply."""
    found: dict[str, set[str]] = {}
    for i in step.lower(*args).instructions:
        if type(i).__name__ == "NcMatmul":
            kinds = {str(view.buffer.type.dtype) for view in i.operands}
            found.setdefault(i.location.part, set()).update(kinds)
    return found


@pytest.mark.slow
def test_groups_are_the_modules_of_reports():
    grouped = nj.search_precision(
        jax.grad(loss),
        tolerance=1.0,
        groups="module",
        candidates=("bf16", "fp32"),
        objective="preference",
        variations=0,
        progress=False,
    )(STATE, X)
    names = {group.name for group in grouped.groups}
    reported = nj.profile(jax.grad(loss))(STATE, X).by_module()
    assert names <= {label.partition(" (")[0] for label in reported}
    assert {"blocks/0", "blocks/1/up", "blocks/0/down", "head"} <= names
    assert set(forms(nj.jit(jax.grad(loss), policy=grouped.policy), STATE, X)) == names


def test_a_rule_is_about_a_module():
    policy = nj.Policy(rules=(nj.Rule(module="^blocks/1/", auto_cast="matmult"),))
    found = forms(nj.jit(jax.grad(loss), policy=policy), STATE, X)
    lowered = {name for name, kinds in found.items() if "bfloat16" in kinds}
    assert lowered == {"blocks/1/up", "blocks/1/down"}


def test_a_rule_about_no_module_names_the_nearest():
    policy = nj.Policy(rules=(nj.Rule(module="blokcs/1", auto_cast="matmult"),))
    with pytest.raises(nj.InvalidProgramError, match=r"module=.*near: .*'blocks/1"):
        nj.jit(loss, policy=policy).lower(STATE, X)


@pytest.mark.slow
def test_a_function_that_two_modules_call_is_lowered_for_each():
    """`jax.jit` inside makes one function of the program, called twice."""

    @jax.jit
    def product(w, x):
        return x @ w

    def f(params, x):
        for layer in ("first", "second"):
            x = product(params["layers"][layer]["w"], x)
        return x

    weights = {"layers": {name: {"w": jnp.eye(16)} for name in ("first", "second")}}
    policy = nj.Policy(rules=(nj.Rule(module="second$", auto_cast="matmult"),))
    lowered = nj.jit(f, policy=policy).lower(weights, X)
    kinds = [
        {str(view.buffer.type.dtype) for view in i.operands}
        for i in lowered.instructions
        if type(i).__name__ == "NcMatmul"
    ]
    assert kinds == [{"float32"}, {"bfloat16"}]
