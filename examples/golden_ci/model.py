"""A small classifier and its training step: the model whose numerics CI guards."""

from __future__ import annotations

import jax
import jax.numpy as jnp

Parameters = dict[str, jax.Array]


def logits(parameters: Parameters, x: jax.Array) -> jax.Array:
    """Class scores [batch, classes] of features [batch, inputs]."""
    hidden = jax.nn.gelu(x @ parameters["up"] + parameters["bias"], approximate=False)
    return hidden @ parameters["down"]


def loss(parameters: Parameters, x: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross entropy."""
    scores = jax.nn.log_softmax(logits(parameters, x))
    return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))


def train_step(
    parameters: Parameters, x: jax.Array, labels: jax.Array
) -> tuple[Parameters, jax.Array]:
    """One step of gradient descent: new parameters, and the loss before it."""
    value, gradients = jax.value_and_grad(loss)(parameters, x, labels)
    return jax.tree.map(lambda p, g: p - 0.125 * g, parameters, gradients), value


def example_args() -> tuple[Parameters, jax.Array, jax.Array]:
    """Parameters, features and labels, for tools that call `train_step`."""
    keys = jax.random.split(jax.random.key(0), 5)
    shapes = {"up": (16, 32), "bias": (32,), "down": (32, 4)}
    parameters = {
        name: jax.random.normal(key, shape) / 4
        for key, (name, shape) in zip(keys, shapes.items(), strict=False)
    }
    x = jax.random.normal(keys[3], (8, 16))
    return parameters, x, jax.random.randint(keys[4], (8,), 0, 4)


train_step.example_args = example_args  # type: ignore[attr-defined]
