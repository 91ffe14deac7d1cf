"""Phases of a whole step, as a timeline shows them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

import neuronjax as nj


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
