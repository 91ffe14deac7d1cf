"""Faults in recurrences over time: HMM, CRF, CTC, state-space models, gates."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import integers, layer_norm, normal, uniform, weight


def crf_faulty(params, x, tags):
    """The negative log-likelihood of a linear-chain CRF over a GRU."""

    def gru(h, x):
        z = jax.nn.sigmoid(x @ params["xz"] + h @ params["hz"])
        n = jnp.tanh(x @ params["xn"] + z * (h @ params["hn"]))
        h = h + z * (n - h)
        return h, h

    _, hidden = jax.lax.scan(gru, jnp.zeros(32), x)
    emission = hidden @ params["out"] + 2.0
    moves = params["moves"]

    def forward(alpha, e):
        paths = jnp.exp(alpha[:, None] + moves)  # fault
        return jnp.log(paths.sum(0)) + e, None

    alpha, _ = jax.lax.scan(forward, emission[0], emission[1:])
    path = jnp.take_along_axis(emission, tags[:, None], axis=1).sum()
    path = path + moves[tags[:-1], tags[1:]].sum()
    return jax.nn.logsumexp(alpha) - path


def crf_healthy(params, x, tags):
    def gru(h, x):
        z = jax.nn.sigmoid(x @ params["xz"] + h @ params["hz"])
        n = jnp.tanh(x @ params["xn"] + z * (h @ params["hn"]))
        h = h + z * (n - h)
        return h, h

    _, hidden = jax.lax.scan(gru, jnp.zeros(32), x)
    emission = hidden @ params["out"] + 2.0
    moves = params["moves"]

    def forward(alpha, e):
        return jax.nn.logsumexp(alpha[:, None] + moves, axis=0) + e, None

    alpha, _ = jax.lax.scan(forward, emission[0], emission[1:])
    path = jnp.take_along_axis(emission, tags[:, None], axis=1).sum()
    path = path + moves[tags[:-1], tags[1:]].sum()
    return jax.nn.logsumexp(alpha) - path


def crf_arguments():
    names = ("xz", "xn", "hz", "hn")
    params = {n: weight(250 + i, 16 + 16 * (i > 1), 32) for i, n in enumerate(names)}
    params |= {"out": weight(255, 32, 6), "moves": normal(256, 6, 6)}
    return params, normal(257, 64, 16), integers(258, 6, 64)


def rwkv_faulty(params, x):
    """RWKV's time mixing: decayed sums of exp(k) * v."""
    h = layer_norm(x)
    k, v = h @ params["k"] + params["bias"], h @ params["v"]
    r = jax.nn.sigmoid(h @ params["r"])
    keep = jnp.exp(-jnp.exp(params["decay"]))

    def step(carry, kv):
        top, bottom = carry
        k, v = kv
        e = jnp.exp(k)  # fault
        top, bottom = keep * top + e * v, keep * bottom + e
        return (top, bottom), top / bottom

    zeros = jnp.zeros_like(params["decay"])
    _, wkv = jax.lax.scan(step, (zeros, zeros), (k, v))
    return x + (r * wkv) @ params["o"]


def rwkv_healthy(params, x):
    h = layer_norm(x)
    k, v = h @ params["k"] + params["bias"], h @ params["v"]
    r = jax.nn.sigmoid(h @ params["r"])
    rate = jnp.exp(params["decay"])

    def step(carry, kv):
        top, bottom, peak = carry
        k, v = kv
        new = jnp.maximum(peak - rate, k)
        old, e = jnp.exp(peak - rate - new), jnp.exp(k - new)
        top, bottom = old * top + e * v, old * bottom + e
        return (top, bottom, new), top / bottom

    zeros = jnp.zeros_like(params["decay"])
    _, wkv = jax.lax.scan(step, (zeros, zeros, zeros - 1e30), (k, v))
    return x + (r * wkv) @ params["o"]


def rwkv_arguments():
    params = {n: weight(260 + i, 32, 32) for i, n in enumerate("kvro")}
    bias = np.linspace(-2, 90, 32, dtype=np.float32)
    decay = uniform(265, 32, low=-5.0, high=0.0)
    return params | {"bias": bias, "decay": decay}, normal(266, 48, 32)


def hmm_faulty(params, x):
    """The likelihood of a hidden Markov model with Gaussian emissions."""
    features = jnp.tanh(x @ params["project"])
    gap = features[:, None, :] - params["centres"]
    density = jnp.exp(-0.5 * jnp.sum(gap * gap, axis=-1) / 0.3)
    moves = jax.nn.softmax(params["moves"], axis=-1)

    def forward(alpha, b):
        alpha = (alpha @ moves) * b  # fault
        return alpha, alpha

    alpha, all_of = jax.lax.scan(forward, jnp.full(8, 0.125), density)
    posterior = all_of / all_of.sum(-1, keepdims=True)
    return jnp.log(alpha.sum()), posterior


def hmm_healthy(params, x):
    features = jnp.tanh(x @ params["project"])
    gap = features[:, None, :] - params["centres"]
    density = jnp.exp(-0.5 * jnp.sum(gap * gap, axis=-1) / 0.3)
    moves = jax.nn.softmax(params["moves"], axis=-1)

    def forward(carry, b):
        alpha, logp = carry
        alpha = (alpha @ moves) * b
        total = alpha.sum()
        return (alpha / total, logp + jnp.log(total)), alpha / total

    start = (jnp.full(8, 0.125), 0.0)
    (_, logp), posterior = jax.lax.scan(forward, start, density)
    return logp, posterior


def hmm_arguments():
    params = {
        "project": weight(270, 16, 6),
        "centres": uniform(271, 8, 6, low=-0.8, high=0.8),
        "moves": normal(272, 8, 8),
    }
    return params, normal(273, 120, 16)


def mamba_faulty(params, x):
    """A selective state-space layer in FP16 with a softplus written out."""
    u = (x @ params["in"]).astype(jnp.float16)
    raw = (x @ params["dt"] + params["shift"]).astype(jnp.float16)
    dt = jnp.log(1 + jnp.exp(raw))  # fault
    dt = dt.astype(jnp.float32)
    b, c = x @ params["b"], x @ params["c"]

    def step(state, now):
        u, dt, b, c = now
        keep = jnp.exp(-dt[:, None] * params["rate"])
        drive = (dt * u.astype(jnp.float32))[:, None] * b
        state = keep * state + drive
        return state, state @ c

    _, y = jax.lax.scan(step, jnp.zeros((16, 8)), (u, dt, b, c))
    return jax.nn.silu(y) @ params["out"]


def mamba_healthy(params, x):
    u = (x @ params["in"]).astype(jnp.float16)
    raw = (x @ params["dt"] + params["shift"]).astype(jnp.float16)
    dt = jax.nn.softplus(raw.astype(jnp.float32))
    b, c = x @ params["b"], x @ params["c"]

    def step(state, now):
        u, dt, b, c = now
        keep = jnp.exp(-dt[:, None] * params["rate"])
        drive = (dt * u.astype(jnp.float32))[:, None] * b
        state = keep * state + drive
        return state, state @ c

    _, y = jax.lax.scan(step, jnp.zeros((16, 8)), (u, dt, b, c))
    return jax.nn.silu(y) @ params["out"]


def mamba_arguments():
    params = {
        "in": weight(280, 12, 16),
        "dt": weight(281, 12, 16, 3.0),
        "shift": np.linspace(-2, 9, 16, dtype=np.float32),
        "b": weight(282, 12, 8),
        "c": weight(283, 12, 8),
        "rate": uniform(284, 16, 8, low=0.02, high=0.5),
        "out": weight(285, 16, 4),
    }
    return params, normal(286, 64, 12)


def hold_faulty(params, x):
    """S4's zero-order hold: the input matrix of a slow state."""
    rate = -jnp.exp(params["log_rate"])
    dt = jnp.exp(params["log_dt"])
    step = dt[:, None] * rate
    a = jnp.exp(step)
    b = (a - 1) / rate  # fault
    u = jax.nn.gelu(x @ params["in"])

    def advance(state, u):
        state = a * state + b * u[:, None]
        return state, (state * params["c"]).sum(-1)

    _, y = jax.lax.scan(advance, jnp.zeros_like(a), u)
    return y @ params["out"]


def hold_healthy(params, x):
    rate = -jnp.exp(params["log_rate"])
    dt = jnp.exp(params["log_dt"])
    step = dt[:, None] * rate
    a = jnp.exp(step)
    b = jnp.expm1(step) / rate
    u = jax.nn.gelu(x @ params["in"])

    def advance(state, u):
        state = a * state + b * u[:, None]
        return state, (state * params["c"]).sum(-1)

    _, y = jax.lax.scan(advance, jnp.zeros_like(a), u)
    return y @ params["out"]


def hold_arguments():
    params = {
        "log_rate": uniform(290, 16, 4, low=-7.0, high=-5.0),
        "log_dt": uniform(291, 16, low=-10.5, high=-9.5),
        "in": weight(292, 12, 16),
        "c": uniform(293, 16, 4, low=0.5, high=1.5),
        "out": weight(294, 16, 3, 5000.0),
    }
    return params, normal(295, 64, 12)


def ctc_faulty(params, frames, label):
    """CTC's forward pass, where impossible prefixes have log probability -Inf."""
    h = jax.nn.relu(frames @ params["in"])
    logp = jax.nn.log_softmax(h @ params["out"])
    extended = jnp.zeros(2 * label.shape[0] + 1, label.dtype).at[1::2].set(label)

    def add(a, b):
        top = jnp.maximum(a, b)
        return top + jnp.log(jnp.exp(a - top) + jnp.exp(b - top))  # fault

    def step(alpha, logp):
        moved = jnp.concatenate([jnp.full(1, -jnp.inf), alpha[:-1]])
        skipped = jnp.concatenate([jnp.full(2, -jnp.inf), alpha[:-2]])
        odd = jnp.arange(alpha.shape[0]) % 2 == 1
        alpha = add(alpha, add(moved, jnp.where(odd, skipped, -jnp.inf)))
        return alpha + logp[extended], None

    start = jnp.full(extended.shape, -jnp.inf).at[:2].set(logp[0, extended[:2]])
    alpha, _ = jax.lax.scan(step, start, logp[1:])
    return -add(alpha[-1], alpha[-2])


def ctc_healthy(params, frames, label):
    h = jax.nn.relu(frames @ params["in"])
    logp = jax.nn.log_softmax(h @ params["out"])
    extended = jnp.zeros(2 * label.shape[0] + 1, label.dtype).at[1::2].set(label)
    never = -1e9

    def add(a, b):
        top = jnp.maximum(a, b)
        return top + jnp.log(jnp.exp(a - top) + jnp.exp(b - top))

    def step(alpha, logp):
        moved = jnp.concatenate([jnp.full(1, never), alpha[:-1]])
        skipped = jnp.concatenate([jnp.full(2, never), alpha[:-2]])
        odd = jnp.arange(alpha.shape[0]) % 2 == 1
        alpha = add(alpha, add(moved, jnp.where(odd, skipped, never)))
        return alpha + logp[extended], None

    start = jnp.full(extended.shape, never).at[:2].set(logp[0, extended[:2]])
    alpha, _ = jax.lax.scan(step, start, logp[1:])
    return -add(alpha[-1], alpha[-2])


def ctc_arguments():
    params = {"in": weight(296, 16, 32), "out": weight(297, 32, 10)}
    return params, normal(298, 40, 16), 1 + integers(299, 9, 8)


def leak_faulty(params, x):
    """A linear recurrent unit: its slow decays are made in BF16."""
    u = jax.nn.silu(x @ params["in"])
    keep = jax.nn.sigmoid(params["memory"]).astype(jnp.bfloat16)  # fault
    keep = keep.astype(jnp.float32)
    drive = jnp.sqrt(1 - params["floor"]) * u

    def step(state, u):
        state = keep * state + 0.05 * u
        return state, state

    _, states = jax.lax.scan(step, jnp.zeros(32), drive)
    return layer_norm(states[-1]) @ params["out"], states[-1]


def leak_healthy(params, x):
    u = jax.nn.silu(x @ params["in"])
    keep = jax.nn.sigmoid(params["memory"])
    drive = jnp.sqrt(1 - params["floor"]) * u

    def step(state, u):
        state = keep * state + 0.05 * u
        return state, state

    _, states = jax.lax.scan(step, jnp.zeros(32), drive)
    return layer_norm(states[-1]) @ params["out"], states[-1]


def leak_arguments():
    params = {
        "in": weight(300, 12, 32),
        "memory": uniform(301, 32, low=4.5, high=6.8),
        "floor": uniform(302, 32, low=0.1, high=0.4),
        "out": weight(303, 32, 4),
    }
    return params, normal(304, 200, 12, shift=0.4)


FAULTS = (
    Fault(
        name="crf-forward-in-plain-exp",
        kinds=("overflow",),
        faulty=crf_faulty,
        healthy=crf_healthy,
        arguments=crf_arguments,
        policy="bf16",
        source="BiLSTM-CRF tutorials: the partition function grows with the sentence",
    ),
    Fault(
        name="rwkv-exp-of-keys",
        kinds=("overflow", "non-finite"),
        faulty=rwkv_faulty,
        healthy=rwkv_healthy,
        arguments=rwkv_arguments,
        policy="bf16",
        source="RWKV-LM: the first kernel without the running maximum of the keys",
    ),
    Fault(
        name="hmm-forward-in-probabilities",
        kinds=("underflow",),
        faulty=hmm_faulty,
        healthy=hmm_healthy,
        arguments=hmm_arguments,
        policy="bf16",
        source="Rabiner's tutorial on HMMs, section on scaling",
    ),
    Fault(
        name="softplus-written-out-in-half",
        kinds=("overflow",),
        faulty=mamba_faulty,
        healthy=mamba_healthy,
        arguments=mamba_arguments,
        policy="fp16",
        source="mamba and selective-scan ports: log(1 + exp(dt)) without a threshold",
    ),
    Fault(
        name="zero-order-hold-of-slow-state",
        kinds=("cancellation",),
        faulty=hold_faulty,
        healthy=hold_healthy,
        arguments=hold_arguments,
        policy="bf16",
        source="S4 and S5 code: (exp(dt * A) - 1) / A instead of expm1",
    ),
    Fault(
        name="ctc-impossible-prefixes",
        kinds=("non-finite",),
        faulty=ctc_faulty,
        healthy=ctc_healthy,
        arguments=ctc_arguments,
        policy="bf16",
        source="CTC written by hand: logaddexp(-Inf, -Inf) is NaN",
    ),
    Fault(
        name="slow-decay-rounded-to-bf16",
        kinds=("coarse",),
        faulty=leak_faulty,
        healthy=leak_healthy,
        arguments=leak_arguments,
        policy="bf16",
        source="Griffin and Mamba implementations: recurrence parameters need FP32",
    ),
)
