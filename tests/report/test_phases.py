"""Phases of a whole step, as a timeline shows them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

import neuronjax as nj
from neuronjax.report.plots_timeline import phase_runs


def test_of_a_step_with_a_rematerialised_loop():
    """Four layers by scan, recomputed in the backward pass, under Adam."""
    optimizer = optax.adam(1e-3)

    def loss(w, x):
        layer = jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None))
        return jnp.sum(jax.lax.scan(layer, x, w)[0] ** 2)

    def step(w, state, x):
        value, gradient = jax.value_and_grad(loss)(w, x)
        updates, state = optimizer.update(gradient, state, w)
        return optax.apply_updates(w, updates), state, value

    w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
    profiled = nj.profile(step, target="trn2")(w, optimizer.init(w), x)
    program = profiled.timeline.instructions
    found = [i.location.phase for i in program]
    matmuls = [
        phase for phase, i in zip(found, program, strict=True) if i.name == "nc_matmul"
    ]
    # One forward; one again, and two gradients.
    assert matmuls.count("forward") == 1
    assert matmuls.count("backward") == 3
    roots = [
        phase
        for phase, i in zip(found, program, strict=True)
        if i.location.scope.endswith("/sqrt")
    ]
    assert set(roots) == {"optimizer"}


def test_of_a_layer_that_stays_a_call():
    """Too long to become a part of the loop's body, and its name stacks begin anew."""

    def layer(x, w):
        for _ in range(60):
            x = jnp.tanh(x @ w)
        return x, None

    def loss(w, x):
        return jnp.sum(jax.lax.scan(jax.checkpoint(layer), x, w)[0] ** 2)

    w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
    profiled = nj.profile(jax.grad(loss), target="trn2")(w, x)
    found = [
        i.location.phase
        for i in profiled.timeline.instructions
        if i.name == "nc_matmul"
    ]
    # Sixty forward; sixty again (the last one's result is not needed), two gradients of
    # each.
    assert found.count("forward") == 60
    assert found.count("backward") == len(found) - 60 >= 179
    names = [run.name for run in phase_runs(profiled.timeline)]
    assert names == ["forward", "backward"]


def test_a_pause_belongs_to_the_phase_before_it():
    """Two layers under Adam: while it waits for memory nothing else begins."""
    optimizer = optax.adamw(1e-3)

    def loss(params, x, y):
        hidden = jax.nn.gelu(x @ params["w1"] + params["b1"])
        return jnp.mean((hidden @ params["w2"] + params["b2"] - y) ** 2)

    def step(params, state, x, y):
        gradient = jax.grad(loss)(params, x, y)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    params = {
        "w1": jnp.zeros((256, 1024)),
        "b1": jnp.zeros(1024),
        "w2": jnp.zeros((1024, 256)),
        "b2": jnp.zeros(256),
    }
    x = jnp.zeros((128, 256))
    profiled = nj.profile(step, target="trn2", policy="bf16")
    timeline = profiled(params, optimizer.init(params), x, x).timeline
    names = [run.name for run in phase_runs(timeline)]
    assert names == ["forward", "backward", "optimizer"]
