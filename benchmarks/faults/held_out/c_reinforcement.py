"""Policies, values and replay memories of reinforcement learning."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import integers, normal, weight

BODY = nn.Sequential([nn.Dense(32), nn.relu, nn.Dense(24), nn.relu])


def log_probability(logits, actions):
    return jnp.take_along_axis(jax.nn.log_softmax(logits), actions[:, None], -1)[:, 0]


@fault("overflow", "non-finite")
@source("pull request against NaN gradients of a clipped k3 estimator")
@inputs(
    "in: 12x24 w @9500, out: 24x10 w*60; 32x12 @9504; 32 int 0..10 @9505; 32 @9502",
    lambda: -np.abs(normal(9503, 32)),
)
def k3_penalty_capped_after_exponential(params, x, actions, advantage, reference):
    """A policy step with the k3 penalty, capped at ten, after the policies drifted."""

    def loss_of(params):
        logp = log_probability(jnp.tanh(x @ params["in"]) @ params["out"], actions)
        behind = reference - logp  # -
        # + behind = jnp.minimum(reference - logp, 20.0)
        k3 = jnp.exp(behind) - 1.0 - behind  # fault
        # + k3 = jnp.expm1(behind) - behind
        return jnp.mean(0.1 * jnp.clip(k3, 0.0, 10.0) - advantage * logp)

    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1e-2))
    grads = jax.grad(loss_of)(params)
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    return updates


def replay_arguments():
    """One reward is a sensor's error code; its slot is written again later."""
    slots, targets = integers(9522, 32, 24), normal(9523, 24)
    slots[4] = slots[15] = 5
    targets[4] = 2147483648.0
    return (
        "in: 8x16 w @9520, q: 16x1 w*0.5",
        np.abs(normal(9524, 32)),
        slots,
        "24x8 @9525",
        targets,
    )


@fault("absorption", "cancellation", policy="fp32")
@source("drift of sum trees of prioritized replay")
@inputs(by=replay_arguments)
def sum_tree_root_by_differences(params, priorities, slots, x, targets):
    """Prioritized replay: the root of the sum tree takes the change of a priority."""
    error = jnp.abs(targets - (jax.nn.relu(x @ params["in"]) @ params["q"])[:, 0])

    def write(carry, update):  # -
        stored, root = carry
        slot, fresh = update
        root = root + (fresh - stored[slot])  # fault
        return (stored.at[slot].set(fresh), root), None

    # + def write(stored, update):
    # +     slot, fresh = update
    # +     return stored.at[slot].set(fresh), None

    carry = priorities, priorities.sum()  # -
    (stored, root), _ = jax.lax.scan(write, carry, (slots, error + 0.01))  # -
    return stored / root  # -
    # + stored, _ = jax.lax.scan(write, priorities, (slots, error + 0.01))
    # + return stored / stored.sum()


def dueling_arguments():
    x = normal(9530, 12, 16)
    body = jax.tree.map(np.asarray, BODY.init(jax.random.key(3), x[:1]))
    params = {
        "body": body,
        "value": weight(9531, 24, 1, 4.0),
        "advantage": weight(9532, 24, 6, 0.8),
    }
    return params, x


@fault("absorption", "coarse", "uniform")
@source("value networks in BF16 with returns that are not scaled")
@inputs(by=dueling_arguments)
def dueling_advantages_on_bf16_value(params, x):
    """A dueling network in BF16; the game gives hundreds of points."""
    h = BODY.apply(params["body"], x)
    value = (h @ params["value"] + 500.0).astype(jnp.bfloat16)  # -
    advantage = (h @ params["advantage"]).astype(jnp.bfloat16)  # -
    # + advantage = h @ params["advantage"]
    q = value + (advantage - advantage.mean(-1, keepdims=True))  # fault
    # + q = advantage - advantage.mean(-1, keepdims=True)
    q = q.astype(jnp.float32)  # -
    return jax.nn.softmax(q / 0.1), jnp.argmax(q, axis=-1)


def sequence_arguments():
    old = weight(9540, 16, 24)
    params = {"in": weight(9541, 12, 16), "head": old + weight(9542, 16, 24, 1e-5)}
    return params, old, "4x1500x12 @9543; 4x1500 int 0..24 @9544"


@fault("cancellation", policy="fp32")
@source("sequence-level importance ratios of long answers")
@inputs(by=sequence_arguments)
def answer_ratio_from_total_likelihoods(params, old, x, tokens):
    """GSPO: the ratio of whole answers, from the total log-likelihood of each."""

    def likelihood(head):
        logp = jax.nn.log_softmax(h @ head)
        return jnp.take_along_axis(logp, tokens[..., None], -1)[..., 0]

    h = jnp.tanh(x @ params["in"])
    total, before = likelihood(params["head"]).sum(-1), likelihood(old).sum(-1)  # -
    log_ratio = (total - before) / tokens.shape[-1]  # fault
    # + log_ratio = jnp.mean(likelihood(params["head"]) - likelihood(old), axis=-1)
    return log_ratio, jnp.expm1(log_ratio)


@fault("singular", "coarse", "non-finite", policy="fp32")
@source("truncated normal samplers that return infinity in the upper tail")
@inputs(
    lambda: {n: weight(9560 + i, 12, 12) for i, n in enumerate(("in", "mean", "wide"))},
    "16x12 @9565; 16x12 0..1 @9566",
)
def tail_draws_by_inverse_of_upper_cdf(params, x, u):
    """Exploration from the upper tail of a normal, by the inverse of its CDF."""
    h = jax.nn.relu(x @ params["in"])
    mean, wide = jnp.tanh(h @ params["mean"]), jax.nn.softplus(h @ params["wide"])
    low = jax.scipy.stats.norm.cdf(4.8 + 0.2 * mean)  # -
    high = jax.scipy.stats.norm.cdf(7.0 + mean)  # -
    p = low + u * (high - low)  # -
    # + above = jax.scipy.stats.norm.cdf(-4.8 - 0.2 * mean)
    # + beyond = jax.scipy.stats.norm.cdf(-7.0 - mean)
    # + p = above - u * (above - beyond)
    drawn = jnp.sqrt(2.0) * jax.lax.erf_inv(2.0 * p - 1.0)  # fault
    # + drawn = -jax.scipy.special.ndtri(p)
    return drawn, mean + wide * drawn


def renyi_arguments():
    old = weight(9570, 24, 8)
    params = {"in": weight(9571, 12, 24), "out": old + weight(9572, 24, 8, 0.5)}
    return params, "16x12 @9573", old, np.float32(1.0 + 2.0**-18)


@fault("singular", "cancellation", policy="fp32")
@source("alpha divergences whose order approaches one")
@inputs(by=renyi_arguments)
def renyi_divergence_of_order_near_one(params, x, old, order):
    """A trust region by Renyi's divergence, whose order is annealed down to one."""
    h = jnp.tanh(x @ params["in"])
    p, q = jax.nn.softmax(h @ params["out"]), jax.nn.softmax(h @ old)  # -
    moment = jnp.sum(p**order * q ** (1.0 - order), axis=-1)  # -
    divergence = jnp.log(moment) / (order - 1.0)  # fault
    # + p = jax.nn.softmax(h @ params["out"])
    # + ratio = jax.nn.log_softmax(h @ params["out"]) - jax.nn.log_softmax(h @ old)
    # + excess = jnp.sum(p * jnp.expm1((order - 1.0) * ratio), axis=-1)
    # + divergence = jnp.log1p(excess) / (order - 1.0)
    return divergence, jnp.mean(jax.nn.relu(divergence - 0.01))
