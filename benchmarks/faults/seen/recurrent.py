"""Recurrences over time: cells, chains, filters, searches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import layer_norm, normal, uniform, weight


def crf_arguments():
    names = ("xz", "xn", "hz", "hn")
    params = {n: weight(250 + i, 16 + 16 * (i > 1), 32) for i, n in enumerate(names)}
    params |= {"out": weight(255, 32, 6), "moves": normal(256, 6, 6)}
    return params, "64x16 @257; 64 int 0..6 @258"


@fault("overflow")
@source("BiLSTM-CRF tutorials: the partition function grows with the sentence")
@inputs(by=crf_arguments)
def crf_forward_in_plain_exp(params, x, tags):
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
        return jnp.log(paths.sum(0)) + e, None  # -
        # + return jax.nn.logsumexp(alpha[:, None] + moves, axis=0) + e, None

    alpha, _ = jax.lax.scan(forward, emission[0], emission[1:])
    path = jnp.take_along_axis(emission, tags[:, None], axis=1).sum()
    path = path + moves[tags[:-1], tags[1:]].sum()
    return jax.nn.logsumexp(alpha) - path


@fault("overflow", "non-finite")
@source("RWKV-LM: the first kernel without the running maximum of the keys")
@inputs(
    lambda: (
        {n: weight(260 + i, 32, 32) for i, n in enumerate("kvro")}
        | {
            "bias": np.linspace(-2, 90, 32, dtype=np.float32),
            "decay": uniform(265, 32, low=-5.0, high=0.0),
        }
    ),
    "48x32 @266",
)
def rwkv_exp_of_keys(params, x):
    """RWKV's time mixing: decayed sums of exp(k) * v."""
    h = layer_norm(x)
    k, v = h @ params["k"] + params["bias"], h @ params["v"]
    r = jax.nn.sigmoid(h @ params["r"])
    keep = jnp.exp(-jnp.exp(params["decay"]))  # -
    # + rate = jnp.exp(params["decay"])

    def step(carry, kv):
        top, bottom = carry  # -
        # + top, bottom, peak = carry
        k, v = kv
        e = jnp.exp(k)  # fault
        top, bottom = keep * top + e * v, keep * bottom + e  # -
        # + new = jnp.maximum(peak - rate, k)
        # + old, e = jnp.exp(peak - rate - new), jnp.exp(k - new)
        # + top, bottom = old * top + e * v, old * bottom + e
        return (top, bottom), top / bottom  # -
        # + return (top, bottom, new), top / bottom

    zeros = jnp.zeros_like(params["decay"])
    _, wkv = jax.lax.scan(step, (zeros, zeros), (k, v))  # -
    # + _, wkv = jax.lax.scan(step, (zeros, zeros, zeros - 1e30), (k, v))
    return x + (r * wkv) @ params["o"]


@fault("underflow")
@source("Rabiner's tutorial on HMMs, section on scaling")
@inputs("project: 16x6 w @270, centres: 8x6 -0.8..0.8, moves: 8x8; 120x16 @273")
def hmm_forward_in_probabilities(params, x):
    """The likelihood of a hidden Markov model with Gaussian emissions."""
    features = jnp.tanh(x @ params["project"])
    gap = features[:, None, :] - params["centres"]
    density = jnp.exp(-0.5 * jnp.sum(gap * gap, axis=-1) / 0.3)
    moves = jax.nn.softmax(params["moves"], axis=-1)

    def forward(alpha, b):  # -
        alpha = (alpha @ moves) * b  # fault
        return alpha, alpha

    # + def forward(carry, b):
    # +     alpha, logp = carry
    # +     alpha = (alpha @ moves) * b
    # +     total = alpha.sum()
    # +     return (alpha / total, logp + jnp.log(total)), alpha / total

    alpha, all_of = jax.lax.scan(forward, jnp.full(8, 0.125), density)  # -
    posterior = all_of / all_of.sum(-1, keepdims=True)  # -
    return jnp.log(alpha.sum()), posterior  # -
    # + start = (jnp.full(8, 0.125), 0.0)
    # + (_, logp), posterior = jax.lax.scan(forward, start, density)
    # + return logp, posterior


@fault("overflow", policy="fp16")
@source("mamba and selective-scan ports: log(1 + exp(dt)) without a threshold")
@inputs(
    "in: 12x16 w @280, dt: 12x16 w*3, shift: 16 even -2..9, b: 12x8 w, "
    "c: 12x8 w, rate: 16x8 0.02..0.5, out: 16x4 w; 64x12 @286"
)
def softplus_written_out_in_half(params, x):
    """A selective state-space layer in FP16 with a softplus written out."""
    u = (x @ params["in"]).astype(jnp.float16)
    raw = (x @ params["dt"] + params["shift"]).astype(jnp.float16)
    dt = jnp.log(1 + jnp.exp(raw))  # fault
    # + dt = jax.nn.softplus(raw.astype(jnp.float32))
    dt = dt.astype(jnp.float32)  # -
    b, c = x @ params["b"], x @ params["c"]

    def step(state, now):
        u, dt, b, c = now
        keep = jnp.exp(-dt[:, None] * params["rate"])
        drive = (dt * u.astype(jnp.float32))[:, None] * b
        state = keep * state + drive
        return state, state @ c

    _, y = jax.lax.scan(step, jnp.zeros((16, 8)), (u, dt, b, c))
    return jax.nn.silu(y) @ params["out"]


@fault("cancellation")
@source("S4 and S5 code: (exp(dt * A) - 1) / A instead of expm1")
@inputs(
    "log_rate: 16x4 -7..-5 @290, log_dt: 16 -10.5..-9.5, in: 12x16 w, "
    "c: 16x4 0.5..1.5, out: 16x3 w*5000; 64x12 @295"
)
def zero_order_hold_of_slow_state(params, x):
    """S4's zero-order hold: the input matrix of a slow state."""
    rate = -jnp.exp(params["log_rate"])
    dt = jnp.exp(params["log_dt"])
    step = dt[:, None] * rate
    a = jnp.exp(step)
    b = (a - 1) / rate  # fault
    # + b = jnp.expm1(step) / rate
    u = jax.nn.gelu(x @ params["in"])

    def advance(state, u):
        state = a * state + b * u[:, None]
        return state, (state * params["c"]).sum(-1)

    _, y = jax.lax.scan(advance, jnp.zeros_like(a), u)
    return y @ params["out"]


@fault("non-finite")
@source("CTC written by hand: logaddexp(-Inf, -Inf) is NaN")
@inputs("in: 16x32 w @296, out: 32x10 w; 40x16 @298; 8 int 1..10 @299")
def ctc_impossible_prefixes(params, frames, label):
    """CTC's forward pass, where impossible prefixes have log probability -Inf."""
    h = jax.nn.relu(frames @ params["in"])
    logp = jax.nn.log_softmax(h @ params["out"])
    extended = jnp.zeros(2 * label.shape[0] + 1, label.dtype).at[1::2].set(label)
    # + never = -1e9

    def add(a, b):
        top = jnp.maximum(a, b)
        return top + jnp.log(jnp.exp(a - top) + jnp.exp(b - top))  # here

    def step(alpha, logp):
        moved = jnp.concatenate([jnp.full(1, -jnp.inf), alpha[:-1]])  # -
        # + moved = jnp.concatenate([jnp.full(1, never), alpha[:-1]])
        skipped = jnp.concatenate([jnp.full(2, -jnp.inf), alpha[:-2]])  # -
        # + skipped = jnp.concatenate([jnp.full(2, never), alpha[:-2]])
        odd = jnp.arange(alpha.shape[0]) % 2 == 1
        alpha = add(alpha, add(moved, jnp.where(odd, skipped, -jnp.inf)))  # -
        # + alpha = add(alpha, add(moved, jnp.where(odd, skipped, never)))
        return alpha + logp[extended], None

    start = jnp.full(extended.shape, -jnp.inf).at[:2].set(logp[0, extended[:2]])  # -
    # + start = jnp.full(extended.shape, never).at[:2].set(logp[0, extended[:2]])
    alpha, _ = jax.lax.scan(step, start, logp[1:])
    return -add(alpha[-1], alpha[-2])


@fault("coarse")
@source("Griffin and Mamba implementations: recurrence parameters need FP32")
@inputs(
    "in: 12x32 w @300, memory: 32 4.5..6.8, floor: 32 0.1..0.4, out: 32x4 w; "
    "200x12 +0.4 @304"
)
def slow_decay_rounded_to_bf16(params, x):
    """A linear recurrent unit: its slow decays are made in BF16."""
    u = jax.nn.silu(x @ params["in"])
    keep = jax.nn.sigmoid(params["memory"]).astype(jnp.bfloat16)  # fault
    # + keep = jax.nn.sigmoid(params["memory"])
    keep = keep.astype(jnp.float32)  # -
    drive = jnp.sqrt(1 - params["floor"]) * u

    def step(state, u):
        state = keep * state + 0.05 * u
        return state, state

    _, states = jax.lax.scan(step, jnp.zeros(32), drive)
    return layer_norm(states[-1]) @ params["out"], states[-1]


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


@fault("overflow", "non-finite")
@source("tutorial code: a logistic function as exp(z) / (1 + exp(z)) is NaN for z = 90")
@inputs(by=lstm_arguments)
def lstm_gate_as_quotient_of_exponentials(p, x, y):
    """An LSTM whose author wrote the logistic function as e^z / (1 + e^z)."""

    def gate(z):  # -
        return jnp.exp(z) / (1.0 + jnp.exp(z))  # fault

    def loss(p):
        def cell(state, x):
            h, c = state
            z = x @ p["x"] + h @ p["h"] + p["b"]
            i, f, o, g = jnp.split(z, 4)
            c = gate(f) * c + gate(i) * jnp.tanh(g)  # -
            # + c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = gate(o) * jnp.tanh(c)  # -
            # + h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros(p["h"].shape[0])
        _, hidden = jax.lax.scan(cell, (zeros, zeros), x)
        return jnp.mean(jnp.square(hidden @ p["out"] - y))

    value, grads = jax.value_and_grad(loss)(p)
    return value, jax.tree.map(lambda p, g: p - 0.01 * g, p, grads)


@fault("underflow", policy="fp32")
@source("Rabiner's tutorial on hidden Markov models, the section on scaling")
@inputs("8x8 @610; 8x24 @611; 8 @612; 120 int 0..24 @613")
def hmm_forward_unscaled(transition, emission, start, observed):
    """Likelihood of 120 observations under a hidden Markov model."""
    t = jax.nn.softmax(transition, axis=-1)
    e = jax.nn.softmax(emission, axis=-1)

    def step(alpha, symbol):  # -
        alpha = (alpha @ t) * e[:, symbol]  # fault
        return alpha, None

    # + def step(state, symbol):
    # +     alpha, log_total = state
    # +     joint = (alpha @ t) * e[:, symbol]
    # +     total = jnp.sum(joint)
    # +     return (joint / total, log_total + jnp.log(total)), None

    alpha, _ = jax.lax.scan(step, jax.nn.softmax(start), observed)  # -
    return jnp.log(jnp.sum(alpha)), alpha / jnp.sum(alpha)  # -
    # + (alpha, log_total), _ = jax.lax.scan(
    # +     step, (jax.nn.softmax(start), jnp.zeros(())), observed
    # + )
    # + return log_total, alpha


@fault("overflow")
@source("sequence taggers: the partition function of long sentences is inf")
@inputs(
    "w: 10x16 *0.4 @620, out: 16x6 *0.5 +0.1, transition: 6x6 *0.5; 70x10 @623; "
    "70 int 0..6 @624"
)
def crf_partition_outside_log_domain(p, x, tags):
    """A CRF tagger's loss with its forward sums outside the log domain."""

    def loss(p):
        scores = jnp.tanh(x @ p["w"]) @ p["out"]
        move = jnp.exp(p["transition"])  # -

        def step(alpha, s):
            alpha = jnp.sum(alpha[:, None] * move, axis=0) * jnp.exp(s)  # fault
            return alpha, None  # -
            # + moved = jax.nn.logsumexp(alpha[:, None] + p["transition"], axis=0)
            # + return moved + s, None

        alpha, _ = jax.lax.scan(step, jnp.exp(scores[0]), scores[1:])  # -
        # + alpha, _ = jax.lax.scan(step, scores[0], scores[1:])
        gold = jnp.sum(jnp.take_along_axis(scores, tags[:, None], axis=1))
        gold = gold + jnp.sum(p["transition"][tags[:-1], tags[1:]])
        return jnp.log(jnp.sum(alpha)) - gold  # -
        # + return jax.nn.logsumexp(alpha) - gold

    return jax.value_and_grad(loss)(p)


@fault("underflow", "non-finite", policy="fp32")
@source("particle filter literature: keep weights as logarithms")
@inputs(
    "64 @630; 40x64 *0.3 @631",
    lambda: (np.sin(np.arange(40) / 6) + normal(632, 40, scale=0.1)).astype(np.float32),
)
def particle_filter_weight_product(particles, noise, observed):
    """A particle filter that multiplies its weights by likelihoods."""

    def step(state, inputs):
        x, weights = state  # -
        # + x, scores = state
        kick, z = inputs
        x = 0.97 * x + kick
        gap = (z - x) / 0.12
        weights = weights * jnp.exp(-0.5 * jnp.square(gap))  # fault
        # + scores = scores - 0.5 * jnp.square(gap)
        # + scores = scores - jnp.max(scores)
        # + weights = jax.nn.softmax(scores)
        return (x, weights), jnp.sum(weights * x) / jnp.sum(weights)  # -
        # + return (x, scores), jnp.sum(weights * x)

    weights = jnp.full(particles.shape, 1.0 / particles.size)  # -
    (_, weights), track = jax.lax.scan(
        step, (particles, weights), (noise, observed)
    )  # -
    # + scores = jnp.zeros(particles.shape)
    # + _, track = jax.lax.scan(step, (particles, scores), (noise, observed))
    return track


@fault("cancellation")
@source("state-space model code: exp(dt a) - 1 for tiny steps instead of expm1")
@inputs(
    "log_rate: 1x8 -4.5..-2.5 @650, log_step: 12 -13..-12, b: 12x8, "
    "c: 12x8 *0.05, skip: 12 *0.1, mix: 12x6 *0.3; 32x12 +0.5 @656"
)
def state_space_zero_order_hold(p, u):
    """A diagonal state-space layer; its input matrix by zero-order hold."""
    rate = -jnp.exp(p["log_rate"])
    step = jnp.exp(p["log_step"])
    decay = jnp.exp(step[:, None] * rate)
    gain = (jnp.exp(step[:, None] * rate) - 1.0) / rate * p["b"]  # fault
    # + gain = jnp.expm1(step[:, None] * rate) / rate * p["b"]

    def scan(state, x):
        state = decay * state + gain * x[:, None]
        return state, jnp.sum(p["c"] * state, axis=-1)

    zeros = jnp.zeros(rate.shape[1:])[None] * step[:, None]
    _, y = jax.lax.scan(scan, zeros, u)
    out = y / jnp.mean(step) + p["skip"] * u
    return jax.nn.gelu(out) @ p["mix"]


def gated_linear_arguments():
    p = {n: normal(660 + i, 16, 8, scale=0.3) for i, n in enumerate("qkvg")}
    p["o"] = normal(665, 8, 16, scale=0.3)
    x = normal(666, 64, 16)
    p["g"] = p["g"] - 0.25 * np.sign(x.mean(axis=0))[:, None]
    return p, x + 0.6 * np.sign(x.mean(axis=0))


@fault("overflow", "non-finite")
@source("chunked linear attention: dividing keys by cumulated gates overflows")
@inputs(by=gated_linear_arguments)
def gated_linear_attention_split_decay(p, x):
    """Gated linear attention in a chunk: decay is split over queries and keys."""
    q, k, v = x @ p["q"], x @ p["k"], x @ p["v"]
    log_gate = jax.nn.log_sigmoid(x @ p["g"])
    decay = jnp.cumsum(log_gate, axis=0)
    scores = jnp.tril((q * jnp.exp(decay)) @ (k * jnp.exp(-decay)).T)  # fault
    # + seen = jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool))[..., None]
    # + gap = jnp.where(seen, decay[:, None] - decay[None], 0.0)
    # + pairs = jnp.where(seen, jnp.exp(gap), 0.0)
    # + scores = jnp.sum(q[:, None] * k[None] * pairs, axis=-1)
    return (scores @ v) @ p["o"]
