"""Parts of models as frameworks name them, and passes; the same in all reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import neuronjax as nj
from neuronjax.ir.program import Location, Program

WIDTH, LENGTH, VOCABULARY = 16, 8, 11
X, LABELS = jnp.ones((4, 8)), jnp.zeros(4, jnp.int32)
Step = tuple[Callable[..., Any], tuple[Any, ...]]


def train_step(apply: Callable, params: Any, *batch: Any) -> Step:
    """An Adam step, and its arguments."""
    optimizer = optax.adam(1e-3)

    def loss_fn(params, x, labels):
        logits = apply(params, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def step(params, opt_state, x, labels):
        loss, grads = jax.value_and_grad(loss_fn)(params, x, labels)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    return step, (params, optimizer.init(params), *batch)


# -- models ----------------------------------------------------------------------------


class Attention(nnx.Module):
    def __init__(self, rngs):
        for name in "qkvo":
            layer = nnx.Linear(WIDTH, WIDTH, use_bias=False, rngs=rngs)
            setattr(self, name, layer)

    def __call__(self, x):
        scores = self.q(x) @ self.k(x).swapaxes(-1, -2) / jnp.sqrt(WIDTH)
        mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        weights = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        return self.o(weights @ self.v(x))


class FeedForward(nnx.Module):
    def __init__(self, rngs):
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        return self.down(jax.nn.gelu(self.up(x)))


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm1, self.attn = nnx.RMSNorm(WIDTH, rngs=rngs), Attention(rngs)
        self.norm2, self.mlp = nnx.RMSNorm(WIDTH, rngs=rngs), FeedForward(rngs)

    def __call__(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(VOCABULARY, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(2)])
        self.head = nnx.Linear(WIDTH, VOCABULARY, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def nnx_step() -> Step:
    graph, params = nnx.split(Transformer(nnx.Rngs(0)))
    tokens = jnp.zeros((2, LENGTH), jnp.int32)
    return train_step(lambda p, x: nnx.merge(graph, p)(x), params, tokens, tokens)


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x + nn.Dense(8, name="out")(nn.gelu(nn.Dense(16)(x)))


class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(5, name="head")(Layer(name="block")(x))


def linen_step() -> Step:
    model = Net()
    return train_step(model.apply, model.init(jax.random.key(0), X), X, LABELS)


def equinox_step() -> Step:
    eqx = pytest.importorskip("equinox")
    model = eqx.nn.MLP(8, 5, 16, 1, key=jax.random.key(0))
    params, static = eqx.partition(model, eqx.is_array)

    def apply(params, x):
        return jax.vmap(eqx.combine(params, static))(x)

    return train_step(apply, params, X, LABELS)


def haiku_step() -> Step:
    hk = pytest.importorskip("haiku")
    model = hk.without_apply_rng(hk.transform(lambda x: hk.nets.MLP([16, 5])(x)))
    return train_step(model.apply, model.init(jax.random.key(0), X), X, LABELS)


def mlp(params, x):
    for w, b in params[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = params[-1]
    return x @ w + b


def plain_step() -> Step:
    sizes = [(8, 16), (16, 16), (16, 5)]
    params = [(jnp.ones(size), jnp.ones(size[1])) for size in sizes]
    return train_step(mlp, params, X, LABELS)


STEPS = {
    "nnx": nnx_step,
    "linen": linen_step,
    "equinox": equinox_step,
    "haiku": haiku_step,
    "plain": plain_step,
}
# Some parts that each must have, in all three passes.
PARTS = {
    "nnx": {f"blocks/{n}/{part}" for n in "01" for part in ("attn/q", "mlp/up")}
    | {f"blocks/{n}/norm{m}" for n in "01" for m in "12"},
    "linen": {"Net/block/Dense_0", "Net/block/out", "Net/head"},
    "equinox": {"layers/0", "layers/1"},
    "haiku": {"mlp/linear_0", "mlp/linear_1"},
    "plain": {"params/0", "params/1", "params/2"},
}


# -- what programs say -----------------------------------------------------------------


def locations(program: Program) -> Iterator[tuple[str, Location]]:
    """Every op as the calls reach it."""

    def inside(region, around):
        for op in region.ops:
            here = op.location if around is None else op.location.inside(around)
            yield op.name, here
            for inner in op.regions:
                yield from inside(inner, around)
            if op.name == "func.call":
                body = program.functions[op.attributes["callee"]].body
                yield from inside(body, here)

    return inside(program.entry.body, None)


def captured(name: str) -> Program:
    step, arguments = STEPS[name]()
    return nj.jit(step).lower(*arguments).program


@pytest.mark.slow_cases("linen", "nnx", "haiku", "equinox")
@pytest.mark.parametrize("name", STEPS)
def test_all_ops_have_a_part_and_a_pass(name):
    """Every op is of a module, of the loss or of the step; none is unknown."""
    found = [where for _, where in locations(captured(name))]
    count = Counter(where.part for where in found)
    assert count["(top)"] <= 0.02 * len(found)
    assert sum(not where.phase for where in found) <= 0.02 * len(found)
    for phase in ("forward", "backward", "optimizer"):
        parts = {where.part for where in found if where.phase == phase}
        assert parts >= PARTS[name], phase


@pytest.mark.slow
def test_matmuls_of_nnx_have_the_paths_of_their_weights():
    """Two per weight in the backward pass: one makes its gradient, reading none."""
    found = Counter(
        (where.module, where.phase)
        for op, where in locations(captured("nnx"))
        if op == "stablehlo.dot_general"
    )
    weights = [f"blocks/{n}/attn/{w}" for n in "01" for w in "qkvo"]
    weights += [f"blocks/{n}/mlp/{w}" for n in "01" for w in ("up", "down")]
    expected = Counter()
    for weight in [*weights, "head"]:
        expected.update({(weight, "forward"): 1, (weight, "backward"): 2})
    for n in "01":  # scores and values, and their derivatives to both factors
        attention = f"blocks/{n}/attn"
        expected.update({(attention, "forward"): 2, (attention, "backward"): 4})
    assert found == expected


@pytest.mark.slow
def test_what_a_layer_computes_beside_its_children_is_the_layers():
    program = captured("nnx")
    where = {
        (op, location.module, location.phase) for op, location in locations(program)
    }
    for n in "01":
        assert ("stablehlo.exponential", f"blocks/{n}/attn", "forward") in where
        assert ("stablehlo.tanh", f"blocks/{n}/mlp", "forward") in where
        assert ("stablehlo.rsqrt", f"blocks/{n}/norm1", "forward") in where
    residual = {m for op, m, _ in where if op == "stablehlo.add"}
    assert residual >= {"blocks/0", "blocks/1"}


def test_the_loss_is_of_its_function():
    losses = [
        where for op, where in locations(captured("plain")) if op == "stablehlo.log"
    ]
    assert {(w.part, w.phase) for w in losses} == {("loss_fn", "forward")}, losses


def test_without_a_backward_pass_no_pass_is_named():
    params = {"first": {"w": jnp.ones((8, 8))}}
    program = nj.jit(lambda params, x: x @ params["first"]["w"]).lower(params, X)
    found = {
        (where.part, where.phase)
        for op, where in locations(program.program)
        if op == "stablehlo.dot_general"
    }
    assert found == {("first", "")}


def test_a_clipped_gradient_and_a_schedule_are_the_optimizers():
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adam(optax.linear_schedule(1e-3, 0, 9))
    )
    params = [(jnp.ones((8, 8)), jnp.ones(8)), (jnp.ones((8, 8)), jnp.ones(8))]

    def step(params, opt_state, x):
        grads = jax.grad(lambda p: mlp(p, x).sum())(params)
        updates, opt_state = optimizer.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state

    program = nj.jit(step).lower(params, optimizer.init(params), X).program
    norm = [where for op, where in locations(program) if op == "stablehlo.sqrt"]
    assert {where.phase for where in norm} == {"optimizer"}
    assert "step" in {where.part for where in norm}  # of all gradients
    assert {"params/0", "params/1"} <= {where.part for where in norm}  # of Adam


def test_a_rematerialised_scan_of_stacked_layers():
    def block(x, layer):
        return jnp.tanh(x @ layer["w"] + layer["b"])

    def loss(params, x):
        body = jax.checkpoint(block)
        x, _ = jax.lax.scan(lambda c, p: (body(c, p), None), x, params["layers"])
        return (x @ params["head"]["w"]).sum()

    def step(params, x):
        grads = jax.grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    layers = {"w": jnp.ones((3, 8, 8)), "b": jnp.ones((3, 8))}
    params = {"layers": layers, "head": {"w": jnp.ones((8, 1))}}
    program = nj.jit(step).lower(params, X).program
    dots = Counter(
        (where.module, where.phase)
        for op, where in locations(program)
        if op == "stablehlo.dot_general"
    )
    # One more in the backward pass: the forward one again, which runs there.
    assert dots["layers", "forward"] == 1
    assert dots["layers", "backward"] == 3
    assert {m for m, phase in dots} == {"layers", "head"}


def test_a_callee_of_several_layers_is_the_part_of_each_call():
    @jax.jit
    def block(layer, x):
        return jnp.tanh(x @ layer["w"])

    def model(params, x):
        for layer in params["blocks"]:
            x = block(layer, x)
        return x

    params = {"blocks": [{"w": jnp.ones((8, 8))} for _ in range(3)]}
    program = nj.jit(model).lower(params, X).program
    dots = [w.module for op, w in locations(program) if op == "stablehlo.dot_general"]
    assert dots == ["blocks/0", "blocks/1", "blocks/2"]


# -- all reports -----------------------------------------------------------------------


@pytest.mark.slow
def test_all_reports_name_the_same_parts():
    step, arguments = nnx_step()
    program = nj.jit(step, policy="bf16").lower(*arguments).program
    expected = {where.label for _, where in locations(program)}
    profiled = set(nj.profile(step, policy="bf16")(*arguments).by_module())
    compared = nj.compare(step, policy="bf16", reference="float32")(*arguments)
    _, statistics = nj.jit(step, policy="bf16", collect=True)(*arguments)
    collected = {
        Location(module=r["module"], phase=r["phase"]).label for r in statistics.records
    }
    assert profiled - {""} <= expected
    assert {row["label"] for row in compared.by_module()} <= expected
    assert collected <= expected
    common = {f"blocks/0/attn/q ({p})" for p in ("forward", "backward", "optimizer")}
    assert profiled & collected >= common - {"blocks/0/attn/q (optimizer)"}
    assert {row["label"] for row in compared.by_module()} >= common
    # Of ops, and of time, next to nothing is nobody's.
    nobody = sum(r.module == "(top)" for r in compared.ops)
    assert nobody <= 0.02 * len(compared.ops)
