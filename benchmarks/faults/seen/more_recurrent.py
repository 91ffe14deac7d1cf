"""Recurrences over time: cells, chains, filters, searches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.common import normal, uniform


def lstm_quotient_gates(p, x, y):
    """An LSTM whose author wrote the logistic function as e^z / (1 + e^z)."""

    def gate(z):
        return jnp.exp(z) / (1.0 + jnp.exp(z))  # fault

    def loss(p):
        def cell(state, x):
            h, c = state
            z = x @ p["x"] + h @ p["h"] + p["b"]
            i, f, o, g = jnp.split(z, 4)
            c = gate(f) * c + gate(i) * jnp.tanh(g)
            h = gate(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros(p["h"].shape[0])
        _, hidden = jax.lax.scan(cell, (zeros, zeros), x)
        return jnp.mean(jnp.square(hidden @ p["out"] - y))

    value, grads = jax.value_and_grad(loss)(p)
    return value, jax.tree.map(lambda p, g: p - 0.01 * g, p, grads)


def lstm_sigmoid_gates(p, x, y):
    def loss(p):
        def cell(state, x):
            h, c = state
            z = x @ p["x"] + h @ p["h"] + p["b"]
            i, f, o, g = jnp.split(z, 4)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros(p["h"].shape[0])
        _, hidden = jax.lax.scan(cell, (zeros, zeros), x)
        return jnp.mean(jnp.square(hidden @ p["out"] - y))

    value, grads = jax.value_and_grad(loss)(p)
    return value, jax.tree.map(lambda p, g: p - 0.01 * g, p, grads)


def lstm_arguments():
    p = {
        "x": normal(600, 6, 64, scale=0.5),
        "h": normal(601, 16, 64, scale=0.2),
        "b": normal(602, 64, scale=0.3),
        "out": normal(603, 16, 2, scale=0.3),
    }
    x = normal(604, 30, 6)
    x[17] *= 90  # a sensor's spike
    return p, x, normal(605, 30, 2)


def hmm_forward_plain(transition, emission, start, observed):
    """Likelihood of 120 observations under a hidden Markov model."""
    t = jax.nn.softmax(transition, axis=-1)
    e = jax.nn.softmax(emission, axis=-1)

    def step(alpha, symbol):
        alpha = (alpha @ t) * e[:, symbol]  # fault
        return alpha, None

    alpha, _ = jax.lax.scan(step, jax.nn.softmax(start), observed)
    return jnp.log(jnp.sum(alpha)), alpha / jnp.sum(alpha)


def hmm_forward_scaled(transition, emission, start, observed):
    t = jax.nn.softmax(transition, axis=-1)
    e = jax.nn.softmax(emission, axis=-1)

    def step(state, symbol):
        alpha, log_total = state
        joint = (alpha @ t) * e[:, symbol]
        total = jnp.sum(joint)
        return (joint / total, log_total + jnp.log(total)), None

    (alpha, log_total), _ = jax.lax.scan(
        step, (jax.nn.softmax(start), jnp.zeros(())), observed
    )
    return log_total, alpha


def hmm_arguments():
    observed = np.random.default_rng(613).integers(0, 24, 120).astype(np.int32)
    return normal(610, 8, 8), normal(611, 8, 24), normal(612, 8), observed


def crf_partition_exponential(p, x, tags):
    """A CRF tagger's loss with its forward sums outside the log domain."""

    def loss(p):
        scores = jnp.tanh(x @ p["w"]) @ p["out"]
        move = jnp.exp(p["transition"])

        def step(alpha, s):
            alpha = jnp.sum(alpha[:, None] * move, axis=0) * jnp.exp(s)  # fault
            return alpha, None

        alpha, _ = jax.lax.scan(step, jnp.exp(scores[0]), scores[1:])
        gold = jnp.sum(jnp.take_along_axis(scores, tags[:, None], axis=1))
        gold = gold + jnp.sum(p["transition"][tags[:-1], tags[1:]])
        return jnp.log(jnp.sum(alpha)) - gold

    return jax.value_and_grad(loss)(p)


def crf_partition_log(p, x, tags):
    def loss(p):
        scores = jnp.tanh(x @ p["w"]) @ p["out"]

        def step(alpha, s):
            moved = jax.nn.logsumexp(alpha[:, None] + p["transition"], axis=0)
            return moved + s, None

        alpha, _ = jax.lax.scan(step, scores[0], scores[1:])
        gold = jnp.sum(jnp.take_along_axis(scores, tags[:, None], axis=1))
        gold = gold + jnp.sum(p["transition"][tags[:-1], tags[1:]])
        return jax.nn.logsumexp(alpha) - gold

    return jax.value_and_grad(loss)(p)


def crf_arguments():
    p = {
        "w": normal(620, 10, 16, scale=0.4),
        "out": normal(621, 16, 6, scale=0.5, shift=0.1),
        "transition": normal(622, 6, 6, scale=0.5),
    }
    tags = np.random.default_rng(624).integers(0, 6, 70).astype(np.int32)
    return p, normal(623, 70, 10), tags


def particle_weights_plain(particles, noise, observed):
    """A particle filter that multiplies its weights by likelihoods."""

    def step(state, inputs):
        x, weights = state
        kick, z = inputs
        x = 0.97 * x + kick
        gap = (z - x) / 0.12
        weights = weights * jnp.exp(-0.5 * jnp.square(gap))  # fault
        return (x, weights), jnp.sum(weights * x) / jnp.sum(weights)

    weights = jnp.full(particles.shape, 1.0 / particles.size)
    (_, weights), track = jax.lax.scan(step, (particles, weights), (noise, observed))
    return track


def particle_weights_log(particles, noise, observed):
    def step(state, inputs):
        x, scores = state
        kick, z = inputs
        x = 0.97 * x + kick
        gap = (z - x) / 0.12
        scores = scores - 0.5 * jnp.square(gap)
        scores = scores - jnp.max(scores)
        weights = jax.nn.softmax(scores)
        return (x, scores), jnp.sum(weights * x)

    scores = jnp.zeros(particles.shape)
    _, track = jax.lax.scan(step, (particles, scores), (noise, observed))
    return track


def particle_arguments():
    observed = np.sin(np.arange(40) / 6) + normal(632, 40, scale=0.1)
    return normal(630, 64), normal(631, 40, 64, scale=0.3), observed.astype(np.float32)


def ssm_exp_minus_one(p, u):
    """A diagonal state-space layer; its input matrix by zero-order hold."""
    rate = -jnp.exp(p["log_rate"])
    step = jnp.exp(p["log_step"])
    decay = jnp.exp(step[:, None] * rate)
    gain = (jnp.exp(step[:, None] * rate) - 1.0) / rate * p["b"]  # fault

    def scan(state, x):
        state = decay * state + gain * x[:, None]
        return state, jnp.sum(p["c"] * state, axis=-1)

    zeros = jnp.zeros(rate.shape[1:])[None] * step[:, None]
    _, y = jax.lax.scan(scan, zeros, u)
    out = y / jnp.mean(step) + p["skip"] * u
    return jax.nn.gelu(out) @ p["mix"]


def ssm_expm1(p, u):
    rate = -jnp.exp(p["log_rate"])
    step = jnp.exp(p["log_step"])
    decay = jnp.exp(step[:, None] * rate)
    gain = jnp.expm1(step[:, None] * rate) / rate * p["b"]

    def scan(state, x):
        state = decay * state + gain * x[:, None]
        return state, jnp.sum(p["c"] * state, axis=-1)

    zeros = jnp.zeros(rate.shape[1:])[None] * step[:, None]
    _, y = jax.lax.scan(scan, zeros, u)
    out = y / jnp.mean(step) + p["skip"] * u
    return jax.nn.gelu(out) @ p["mix"]


def ssm_arguments():
    p = {
        "log_rate": uniform(650, -4.5, -2.5, 1, 8),
        "log_step": uniform(651, -13.0, -12.0, 12),
        "b": normal(652, 12, 8),
        "c": normal(653, 12, 8, scale=0.05),
        "skip": normal(654, 12, scale=0.1),
        "mix": normal(655, 12, 6, scale=0.3),
    }
    return p, normal(656, 32, 12, shift=0.5)


def gated_linear_chunk_split(p, x):
    """Gated linear attention in a chunk: decay is split over queries and keys."""
    q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
    log_gate = jax.nn.log_sigmoid(x @ p["g"])
    decay = jnp.cumsum(log_gate, axis=0)
    scores = jnp.tril((q * jnp.exp(decay)) @ (k * jnp.exp(-decay)).T)  # fault
    return (scores @ v) @ p["o"]


def gated_linear_chunk_pairs(p, x):
    q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
    log_gate = jax.nn.log_sigmoid(x @ p["g"])
    decay = jnp.cumsum(log_gate, axis=0)
    seen = jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool))[..., None]
    gap = jnp.where(seen, decay[:, None] - decay[None], 0.0)
    pairs = jnp.where(seen, jnp.exp(gap), 0.0)
    scores = jnp.sum(q[:, None] * k[None] * pairs, axis=-1)
    return (scores @ v) @ p["o"]


def gated_linear_arguments():
    p = {n: normal(660 + i, 16, 8, scale=0.3) for i, n in enumerate("qkvg")}
    p["o"] = normal(665, 8, 16, scale=0.3)
    x = normal(666, 64, 16)
    p["g"] = p["g"] - 0.25 * np.sign(x.mean(axis=0))[:, None]
    return p, x + 0.6 * np.sign(x.mean(axis=0))


FAULTS = (
    Fault(
        name="lstm-gate-as-quotient-of-exponentials",
        kinds=("overflow", "non-finite"),
        faulty=lstm_quotient_gates,
        healthy=lstm_sigmoid_gates,
        arguments=lstm_arguments,
        policy="bf16",
        source=(
            "tutorial code: a logistic function as exp(z) / (1 + exp(z)) is NaN for "
            "z = 90"
        ),
    ),
    Fault(
        name="hmm-forward-unscaled",
        kinds=("underflow",),
        faulty=hmm_forward_plain,
        healthy=hmm_forward_scaled,
        arguments=hmm_arguments,
        policy="fp32",
        source="Rabiner's tutorial on hidden Markov models, the section on scaling",
    ),
    Fault(
        name="crf-partition-outside-log-domain",
        kinds=("overflow",),
        faulty=crf_partition_exponential,
        healthy=crf_partition_log,
        arguments=crf_arguments,
        policy="bf16",
        source="sequence taggers: the partition function of long sentences is inf",
    ),
    Fault(
        name="particle-filter-weight-product",
        kinds=("underflow", "non-finite"),
        faulty=particle_weights_plain,
        healthy=particle_weights_log,
        arguments=particle_arguments,
        policy="fp32",
        source="particle filter literature: keep weights as logarithms",
    ),
    Fault(
        name="state-space-zero-order-hold",
        kinds=("cancellation",),
        faulty=ssm_exp_minus_one,
        healthy=ssm_expm1,
        arguments=ssm_arguments,
        policy="bf16",
        source="state-space model code: exp(dt a) - 1 for tiny steps instead of expm1",
    ),
    Fault(
        name="gated-linear-attention-split-decay",
        kinds=("overflow", "non-finite"),
        faulty=gated_linear_chunk_split,
        healthy=gated_linear_chunk_pairs,
        arguments=gated_linear_arguments,
        policy="bf16",
        source="chunked linear attention: dividing keys by cumulated gates overflows",
    ),
)
