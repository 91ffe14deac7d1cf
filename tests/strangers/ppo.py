"""PPO on a cart with a pole, written in JAX throughout, in one program.

The parameters are orthogonal at first. Their QR decomposition, which no engine of the
chip computes, is done before the program, on the host.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from tests.strangers.program import Call, stranger
from tests.zoo.program import uniform

Array = jax.Array
CARTS, STEPS, EPOCHS, BATCHES = 4, 8, 2, 2


class Actor(nnx.Module):
    """Logits of two actions, and the value of a state."""

    def __init__(self, rngs: nnx.Rngs):
        def layer(inputs, outputs, gain):
            initial = nnx.initializers.orthogonal(gain)
            return nnx.Linear(inputs, outputs, kernel_init=initial, rngs=rngs)

        net = lambda outputs, gain: nnx.Sequential(  # noqa: E731
            layer(4, 16, 2**0.5),
            jnp.tanh,
            layer(16, 16, 2**0.5),
            jnp.tanh,
            layer(16, outputs, gain),
        )
        self.policy, self.value = net(2, 0.01), net(1, 1.0)

    def __call__(self, x: Array) -> tuple[Array, Array]:
        return self.policy(x), self.value(x)[..., 0]


class Moment(NamedTuple):
    """What is remembered of one step of every cart."""

    state: Array
    action: Array
    log_probability: Array
    value: Array
    reward: Array
    done: Array


def swing(state: Array, action: Array) -> tuple[Array, Array, Array]:
    """Return (state, reward, done) of a cart 20 ms later."""
    _, speed, angle, turn = state
    force = jnp.where(action == 1, 10.0, -10.0)
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    push = (force + 0.05 * turn**2 * sin) / 1.1
    spin = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
    slide = push - 0.05 * spin * cos / 1.1
    after = state + 0.02 * jnp.stack([speed, slide, turn, spin])
    done = (jnp.abs(after[0]) > 2.4) | (jnp.abs(after[2]) > 0.21)
    return jnp.where(done, 0.01 * state, after), 1.0 - done, done


def log_probability(logits: Array, action: Array) -> Array:
    """Return the log probability of an action under logits."""
    logs = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(logs, action[..., None], axis=-1)[..., 0]


def advantages(moments: Moment, last_value: Array) -> Array:
    """Return generalized advantages by a scan from the end."""

    def back(carry, moment):
        later, value = carry
        going = 1.0 - moment.done
        surprise = moment.reward + 0.99 * value * going - moment.value
        advantage = surprise + 0.99 * 0.95 * going * later
        return (advantage, moment.value), advantage

    start = jnp.zeros_like(last_value), last_value
    return jax.lax.scan(back, start, moments, reverse=True)[1]


def clipped_loss(model: Actor, moments: Moment, advantage: Array, target: Array):
    """Return the clipped loss of policy and value, less a share of the entropy."""
    logits, value = model(moments.state)
    ratio = jnp.exp(log_probability(logits, moments.action) - moments.log_probability)
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 0.8, 1.2) * advantage)
    near = moments.value + jnp.clip(value - moments.value, -0.2, 0.2)
    off = jnp.maximum((value - target) ** 2, (near - target) ** 2)
    entropy = -jnp.sum(jax.nn.softmax(logits) * jax.nn.log_softmax(logits), axis=-1)
    return -gain.mean() + 0.25 * off.mean() - 0.01 * entropy.mean()


@stranger("flax")
def ppo() -> Call:
    """PPO: two updates of a policy that QR made orthogonal on the host."""
    model = Actor(nnx.Rngs(0))
    rule = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2.5e-3, eps=1e-3))
    optimizer = nnx.Optimizer(model, rule, wrt=nnx.Param)
    graph, learner = nnx.split((model, optimizer))

    def rollout(model, states, key):
        def step(states, key):
            logits, value = model(states)
            action = jax.random.categorical(key, logits)
            after, reward, done = jax.vmap(swing)(states, action)
            said = log_probability(logits, action)
            return after, Moment(states, action, said, value, reward, done)

        return jax.lax.scan(step, states, jax.random.split(key, STEPS))

    def epoch(carry, key):
        learner, (moments, advantage, target) = carry
        order = jax.random.permutation(key, STEPS * CARTS).reshape(BATCHES, -1)
        flat = jax.tree.map(
            lambda x: x.reshape(STEPS * CARTS, *x.shape[2:]),
            (moments, advantage, target),
        )

        def minibatch(learner, which):
            model, optimizer = nnx.merge(graph, learner)
            batch = jax.tree.map(lambda x: x[which], flat)
            loss, gradient = nnx.value_and_grad(clipped_loss)(model, *batch)
            optimizer.update(model, gradient)
            return nnx.state((model, optimizer)), loss

        learner, losses = jax.lax.scan(minibatch, learner, order)
        return (learner, (moments, advantage, target)), losses

    def update(carry, key):
        learner, states = carry
        model, _ = nnx.merge(graph, learner)
        keys = jax.random.split(key)
        states, moments = rollout(model, states, keys[0])
        advantage = advantages(moments, model(states)[1])
        data = moments, advantage, advantage + moments.value
        (learner, _), losses = jax.lax.scan(
            epoch, (learner, data), jax.random.split(keys[1], EPOCHS)
        )
        return (learner, states), (losses, moments.reward.mean())

    def train(learner, states, key):
        return jax.lax.scan(update, (learner, states), jax.random.split(key, 2))

    return train, (learner, uniform(1, (CARTS, 4), 0.05), jax.random.key(1))
