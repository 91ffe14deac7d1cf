"""Policies, routers and gates; weights and scores that come out all alike."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import integers, layer_norm, normal, uniform, weight


@fault("cancellation", "singular", "non-finite")
@source("Spinning Up and TFP's Tanh bijector: log(1 - tanh(u)^2)")
@inputs(
    "in: 12x32 w @400, mean: 32x4 w*6, std: 32x4 w, value: 4x2 w; 64x12 @404; 64x4 @405"
)
def sac_log_of_one_minus_tanh_squared(params, states, noise):
    """SAC's actor: the log probability of a tanh-squashed Gaussian."""

    def loss_of(params):
        h = jax.nn.relu(states @ params["in"])
        mean, log_std = h @ params["mean"], jnp.clip(h @ params["std"], -3, 1)
        u = mean + jnp.exp(log_std) * noise
        action = jnp.tanh(u)
        logp = -0.5 * noise**2 - log_std - 0.9189385
        bend = jnp.log(1 - action * action)  # fault
        # + bend = 2 * (0.6931472 - u - jax.nn.softplus(-2 * u))
        value = (action @ params["value"]).sum(-1)
        return jnp.mean(0.2 * (logp - bend).sum(-1) - value)

    return jax.value_and_grad(loss_of)(params)


@fault("coarse", "singular")
@source("atanh of actions clipped by an epsilon that BF16 cannot hold")
@inputs(
    "in: 8x32 w @406, out: 32x3 w; 64x8 @409",
    lambda: np.clip(
        (np.round(np.tanh(normal(408, 64, 3, scale=2.0)) * 64) / 64) * 1.05, -1, 1
    ).astype("f4"),
)
def clip_bound_rounds_to_one(params, states, actions):
    """Behaviour cloning of squashed actions that a dataset holds at the bounds."""
    a = actions.astype(jnp.bfloat16)
    inside = jnp.clip(a, -1 + 1e-3, 1 - 1e-3)  # fault
    # + inside = jnp.clip(a.astype(jnp.float32), -1 + 1e-3, 1 - 1e-3)
    u = jnp.arctanh(inside.astype(jnp.float32))  # -
    # + u = jnp.arctanh(inside)

    def loss_of(params):
        h = jnp.tanh(states @ params["in"])
        return jnp.mean(jnp.abs(h @ params["out"] - u))

    return jax.value_and_grad(loss_of)(params)


def mixture_arguments():
    x = normal(420, 64, 16)
    project = weight(421, 16, 64)
    means = (x @ project)[::16] * 0.9
    weights = {"project": project, "logits": normal(423, 4)}
    return x, means.copy(), "4x64 -0.7..-0.5 @422", weights


@fault("underflow", "non-finite")
@source("EM written by hand: responsibilities 0/0 in many dimensions")
@inputs(by=mixture_arguments)
def mixture_densities_all_zero(x, means, log_scale, weights):
    """One EM step of a Gaussian mixture in 64 dimensions."""
    y = x @ weights["project"]
    scale = jnp.exp(log_scale)  # -
    gap = (y[:, None, :] - means) / scale  # -
    # + gap = (y[:, None, :] - means) / jnp.exp(log_scale)
    density = jnp.exp(-0.5 * jnp.sum(gap * gap, axis=-1))  # fault
    joint = jax.nn.softmax(weights["logits"]) * density / jnp.prod(scale, axis=-1)  # -
    share = joint / joint.sum(-1, keepdims=True)  # -
    # + logp = -0.5 * jnp.sum(gap * gap, axis=-1) - log_scale.sum(-1)
    # + share = jax.nn.softmax(jax.nn.log_softmax(weights["logits"]) + logp, axis=-1)
    total = share.sum(0)
    return (share.T @ y) / (total[:, None] + 1e-3), total


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


@fault("coarse", "uniform")
@source("vLLM and transformers: BF16 logits tie, greedy output depends on order")
@inputs(by=tokens_arguments)
def greedy_choice_among_bf16_ties(params, tokens, table):
    """Greedy decoding; the head's outputs are stored in the model's BF16."""
    h = layer_norm(params["embed"][tokens] @ params["mix"])
    logits = h @ table.T + params["prior"]
    logits = logits.astype(jnp.bfloat16)  # fault
    best = jnp.argmax(logits, axis=-1)
    return best, params["embed"][best]


@fault("coarse", "uniform")
@source("MoE with sigmoid gates: BF16 scores are all one, the first experts win")
@inputs(
    {
        "gate": lambda: np.round(weight(428, 32, 8, 1.0) * 64) / 64,
        "bias": "8 =9",
        "experts": "8x32x16 *0.2 @429",
    },
    "16x32 @430",
)
def router_scores_saturate(params, x):
    """Top-2 of eight experts by sigmoid scores, which saturate in BF16."""
    h = layer_norm(x)
    affinity = h @ params["gate"] + params["bias"]
    scores = jax.nn.sigmoid(affinity.astype(jnp.bfloat16))  # fault
    _, chosen = jax.lax.top_k(scores.astype(jnp.float32), 2)  # -
    # + _, chosen = jax.lax.top_k(affinity, 2)
    picked = jnp.take_along_axis(affinity, chosen, axis=-1)
    share = jax.nn.softmax(picked)
    outputs = jnp.einsum("td,edf->tef", h, params["experts"])
    picked = jnp.take_along_axis(outputs, chosen[..., None], axis=1)
    return jnp.einsum("tk,tkf->tf", share, picked), chosen


@fault("uniform", "coarse", policy="fp32")
@source("retrieval libraries: all cosines of a narrow cone are 1.0 in BF16")
@inputs("in: 16x32 w*0.7 @701, common: 32 *24; 40x16 @703; 16 @704")
def cosines_of_anisotropic_embeddings_in_bf16(params, documents, question):
    """Pools passages by standardized cosines; the embeddings share a direction."""
    keys = jnp.tanh(documents @ params["in"]) + params["common"]
    query = jnp.tanh(question @ params["in"]) + params["common"]
    keys = keys / jnp.linalg.norm(keys, axis=-1, keepdims=True)
    query = query / jnp.linalg.norm(query)
    scores = jnp.sum(keys * query, axis=-1).astype(jnp.bfloat16)  # fault
    # + scores = jnp.sum(keys * query, axis=-1)
    scores = scores.astype(jnp.float32)  # -
    standard = (scores - scores.mean()) / (scores.std() + 1e-6)
    share = jax.nn.softmax(2.0 * standard)
    return share, share @ documents


def evidence_arguments():
    truth = normal(711, 6)
    models = truth + normal(712, 8, 6, scale=0.012)
    x = normal(713, 6000, 6)
    y = x @ truth + normal(714, 6000)
    return models.astype(np.float32), "8 =1", x, y.astype(np.float32), "9x6 @715"


@fault("uniform", "coarse", policy="fp32")
@source("model averaging: large log evidences lose their differences")
@inputs(by=evidence_arguments)
def evidence_softmax_before_maximum(models, noise, x, y, future):
    """Averages regression models by their evidence, as the log sums come in BF16."""
    miss = (x @ models.T - y[:, None]) / noise
    logs = -0.5 * jnp.sum(miss**2, axis=0) - y.size * jnp.log(noise)
    share = jax.nn.softmax(logs.astype(jnp.bfloat16))  # fault
    # + share = jax.nn.softmax((logs - logs.max()).astype(jnp.bfloat16))
    share = share.astype(jnp.float32)
    return share, future @ (share @ models)


@fault("uniform", "coarse")
@source("Tallec and Ollivier (2018), chrono initialization, run in BF16")
@inputs(
    {
        "gates": "8x16 w*0.05 @722",
        "bias": lambda: np.log(uniform(721, 16, low=600.0, high=1000.0)).astype(
            np.float32
        ),
        "in": "8x16 w*0.3 @723",
        "first": "16 *2 @724",
    },
    "400x8 @725",
)
def chrono_forget_gate_rounds_to_one(params, signal):
    """A leaky cell that should forget within a thousand steps, by chrono's bias."""

    def step(cell, x):
        gates = x @ params["gates"] + params["bias"]
        keep = jax.nn.sigmoid(gates.astype(jnp.bfloat16))  # fault
        # + keep = jax.nn.sigmoid(gates)
        keep = keep.astype(jnp.float32)  # -
        cell = keep * cell + 0.01 * jnp.tanh(x @ params["in"])
        return cell, keep

    cell, kept = jax.lax.scan(step, params["first"], signal)
    return cell, jnp.prod(kept, axis=0)
