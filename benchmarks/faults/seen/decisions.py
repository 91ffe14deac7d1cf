"""Faults in reinforcement learning and where a program decides: policies, routers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import integers, layer_norm, normal, uniform, weight


def squash_faulty(params, states, noise):
    """SAC's actor: the log probability of a tanh-squashed Gaussian."""

    def loss_of(params):
        h = jax.nn.relu(states @ params["in"])
        mean, log_std = h @ params["mean"], jnp.clip(h @ params["std"], -3, 1)
        u = mean + jnp.exp(log_std) * noise
        action = jnp.tanh(u)
        logp = -0.5 * noise**2 - log_std - 0.9189385
        bend = jnp.log(1 - action * action)  # fault
        value = (action @ params["value"]).sum(-1)
        return jnp.mean(0.2 * (logp - bend).sum(-1) - value)

    return jax.value_and_grad(loss_of)(params)


def squash_healthy(params, states, noise):
    def loss_of(params):
        h = jax.nn.relu(states @ params["in"])
        mean, log_std = h @ params["mean"], jnp.clip(h @ params["std"], -3, 1)
        u = mean + jnp.exp(log_std) * noise
        action = jnp.tanh(u)
        logp = -0.5 * noise**2 - log_std - 0.9189385
        bend = 2 * (0.6931472 - u - jax.nn.softplus(-2 * u))
        value = (action @ params["value"]).sum(-1)
        return jnp.mean(0.2 * (logp - bend).sum(-1) - value)

    return jax.value_and_grad(loss_of)(params)


def squash_arguments():
    params = {
        "in": weight(400, 12, 32),
        "mean": weight(401, 32, 4, 6.0),
        "std": weight(402, 32, 4),
        "value": weight(403, 4, 2),
    }
    return params, normal(404, 64, 12), normal(405, 64, 4)


def replay_faulty(params, states, actions):
    """Behaviour cloning of squashed actions that a dataset holds at the bounds."""
    a = actions.astype(jnp.bfloat16)
    inside = jnp.clip(a, -1 + 1e-3, 1 - 1e-3)  # fault
    u = jnp.arctanh(inside.astype(jnp.float32))

    def loss_of(params):
        h = jnp.tanh(states @ params["in"])
        return jnp.mean(jnp.abs(h @ params["out"] - u))

    return jax.value_and_grad(loss_of)(params)


def replay_healthy(params, states, actions):
    a = actions.astype(jnp.bfloat16)
    inside = jnp.clip(a.astype(jnp.float32), -1 + 1e-3, 1 - 1e-3)
    u = jnp.arctanh(inside)

    def loss_of(params):
        h = jnp.tanh(states @ params["in"])
        return jnp.mean(jnp.abs(h @ params["out"] - u))

    return jax.value_and_grad(loss_of)(params)


def replay_arguments():
    params = {"in": weight(406, 8, 32), "out": weight(407, 32, 3)}
    actions = np.round(np.tanh(normal(408, 64, 3, scale=2.0)) * 64) / 64
    return params, normal(409, 64, 8), np.clip(actions * 1.05, -1, 1).astype("f4")


def mixture_faulty(x, means, log_scale, weights):
    """One EM step of a Gaussian mixture in 64 dimensions."""
    y = x @ weights["project"]
    scale = jnp.exp(log_scale)
    gap = (y[:, None, :] - means) / scale
    density = jnp.exp(-0.5 * jnp.sum(gap * gap, axis=-1))  # fault
    joint = jax.nn.softmax(weights["logits"]) * density / jnp.prod(scale, axis=-1)
    share = joint / joint.sum(-1, keepdims=True)
    total = share.sum(0)
    return (share.T @ y) / (total[:, None] + 1e-3), total


def mixture_healthy(x, means, log_scale, weights):
    y = x @ weights["project"]
    gap = (y[:, None, :] - means) / jnp.exp(log_scale)
    logp = -0.5 * jnp.sum(gap * gap, axis=-1) - log_scale.sum(-1)
    share = jax.nn.softmax(jax.nn.log_softmax(weights["logits"]) + logp, axis=-1)
    total = share.sum(0)
    return (share.T @ y) / (total[:, None] + 1e-3), total


def mixture_arguments():
    x = normal(420, 64, 16)
    project = weight(421, 16, 64)
    means = (x @ project)[::16] * 0.9
    log_scale = uniform(422, 4, 64, low=-0.7, high=-0.5)
    weights = {"project": project, "logits": normal(423, 4)}
    return x, means.copy(), log_scale, weights


def tokens_faulty(params, tokens, table):
    """Greedy decoding; the head's outputs are stored in the model's BF16."""
    h = layer_norm(params["embed"][tokens] @ params["mix"])
    logits = h @ table.T + params["prior"]
    logits = logits.astype(jnp.bfloat16)  # fault
    best = jnp.argmax(logits, axis=-1)
    return best, params["embed"][best]


def tokens_healthy(params, tokens, table):
    h = layer_norm(params["embed"][tokens] @ params["mix"])
    logits = h @ table.T + params["prior"]
    best = jnp.argmax(logits, axis=-1)
    return best, params["embed"][best]


def tokens_arguments():
    tokens = integers(424, 64, 32)
    params = {
        "embed": normal(425, 64, 16),
        "mix": weight(426, 16, 16),
        # A bonus of the sampler: two groups of words, the second a bit better.
        "prior": np.where(np.arange(64) < 20, 40.0, 40.05).astype(np.float32),
    }
    table = np.round(normal(427, 64, 16) * 2) / 64
    table[20:40] = table[:20]
    return params, tokens, table.astype(np.float32)


def router_faulty(params, x):
    """Top-2 of eight experts by sigmoid scores, which saturate in BF16."""
    h = layer_norm(x)
    affinity = h @ params["gate"] + params["bias"]
    scores = jax.nn.sigmoid(affinity.astype(jnp.bfloat16))  # fault
    _, chosen = jax.lax.top_k(scores.astype(jnp.float32), 2)
    picked = jnp.take_along_axis(affinity, chosen, axis=-1)
    share = jax.nn.softmax(picked)
    outputs = jnp.einsum("td,edf->tef", h, params["experts"])
    picked = jnp.take_along_axis(outputs, chosen[..., None], axis=1)
    return jnp.einsum("tk,tkf->tf", share, picked), chosen


def router_healthy(params, x):
    h = layer_norm(x)
    affinity = h @ params["gate"] + params["bias"]
    _, chosen = jax.lax.top_k(affinity, 2)
    picked = jnp.take_along_axis(affinity, chosen, axis=-1)
    share = jax.nn.softmax(picked)
    outputs = jnp.einsum("td,edf->tef", h, params["experts"])
    picked = jnp.take_along_axis(outputs, chosen[..., None], axis=1)
    return jnp.einsum("tk,tkf->tf", share, picked), chosen


def router_arguments():
    params = {
        "gate": np.round(weight(428, 32, 8, 1.0) * 64) / 64,
        "bias": np.full(8, 9.0, np.float32),
        "experts": normal(429, 8, 32, 16, scale=0.2),
    }
    return params, normal(430, 16, 32)


FAULTS = (
    Fault(
        name="sac-log-of-one-minus-tanh-squared",
        kinds=("cancellation", "singular", "non-finite"),
        faulty=squash_faulty,
        healthy=squash_healthy,
        arguments=squash_arguments,
        policy="bf16",
        source="Spinning Up and TFP's Tanh bijector: log(1 - tanh(u)^2)",
    ),
    Fault(
        name="clip-bound-rounds-to-one",
        kinds=("coarse", "singular"),
        faulty=replay_faulty,
        healthy=replay_healthy,
        arguments=replay_arguments,
        policy="bf16",
        source="atanh of actions clipped by an epsilon that BF16 cannot hold",
    ),
    Fault(
        name="mixture-densities-all-zero",
        kinds=("underflow", "non-finite"),
        faulty=mixture_faulty,
        healthy=mixture_healthy,
        arguments=mixture_arguments,
        policy="bf16",
        source="EM written by hand: responsibilities 0/0 in many dimensions",
    ),
    Fault(
        name="greedy-choice-among-bf16-ties",
        kinds=("coarse", "uniform"),
        faulty=tokens_faulty,
        healthy=tokens_healthy,
        arguments=tokens_arguments,
        policy="bf16",
        source="vLLM and transformers: BF16 logits tie, greedy output depends on order",
    ),
    Fault(
        name="router-scores-saturate",
        kinds=("coarse", "uniform"),
        faulty=router_faulty,
        healthy=router_healthy,
        arguments=router_arguments,
        policy="bf16",
        source="MoE with sigmoid gates: BF16 scores are all one, the first experts win",
    ),
)
