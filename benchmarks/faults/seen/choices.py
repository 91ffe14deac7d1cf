"""Faults that show in choices, orders and counts, in loops, and by a policy's casts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import (
    attention,
    block_params,
    layer_norm,
    normal,
    uniform,
    weight,
)
from benchmarks.faults.seen.serving import case


def classes_faulty(params, x):
    """The likeliest of ten classes, from logits with a common offset in BF16."""
    h = jnp.tanh(x @ params["in"])
    logits = (h @ params["out"] + 40.0).astype(jnp.bfloat16)  # fault
    return jnp.argmax(logits, axis=-1)


def classes_healthy(params, x):
    h = jnp.tanh(x @ params["in"])
    return jnp.argmax(h @ params["out"], axis=-1)


def ranking_faulty(params, documents, query):
    """The order of documents by their score; the sum of two is kept in half."""
    score = (documents @ query + params["prior"]).astype(jnp.float16)  # fault
    return jnp.argsort(-score)


def ranking_healthy(params, documents, query):
    return jnp.argsort(-(documents @ query + params["prior"] - 900.0))


def experts_faulty(params, x):
    """Two experts of eight for each token, by probabilities in 8 bits."""
    h = layer_norm(x)
    probs = jax.nn.softmax(0.3 * h @ params["gate"]).astype(jnp.float8_e4m3)  # fault
    _, chosen = jax.lax.top_k(probs.astype(jnp.float32), 2)
    return jnp.sort(chosen, axis=-1)


def experts_healthy(params, x):
    probs = jax.nn.softmax(0.3 * layer_norm(x) @ params["gate"])
    _, chosen = jax.lax.top_k(probs, 2)
    return jnp.sort(chosen, axis=-1)


def resample_faulty(weights, particles, u):
    """A particle filter: which particles survive, by a running sum in half."""
    ends = jnp.cumsum(weights.astype(jnp.float16))  # fault
    places = (jnp.arange(512) + u) / 512.0
    chosen = jnp.searchsorted(ends.astype(jnp.float32) / ends[-1], places)
    return chosen, particles[jnp.clip(chosen, 0, 511)]


def resample_healthy(weights, particles, u):
    ends = jnp.cumsum(weights)
    places = (jnp.arange(512) + u) / 512.0
    chosen = jnp.searchsorted(ends / ends[-1], places)
    return chosen, particles[jnp.clip(chosen, 0, 511)]


def newton_faulty(target, start):
    """Roots by Newton's method, until the change is below a bound for FP32."""

    def wants(state):
        n, _, move = state
        return (n < 60) & (jnp.max(jnp.abs(move)) > 1e-3)

    def step(state):
        n, x, _ = state
        move = ((x**3 - target) / (3 * x**2)).astype(jnp.bfloat16)
        new = (x.astype(jnp.bfloat16) - move).astype(jnp.float32)  # fault
        return n + 1, new, new - x

    n, x, _ = jax.lax.while_loop(wants, step, (0, start, start))
    return n, x - jnp.cbrt(target)


def newton_healthy(target, start):
    def wants(state):
        n, _, move = state
        return (n < 60) & (jnp.max(jnp.abs(move)) > 1e-3)

    def step(state):
        n, x, _ = state
        move = (x**3 - target) / (3 * x**2)
        return n + 1, x - move, -move

    n, x, _ = jax.lax.while_loop(wants, step, (0, start, start))
    return n, x


def stamps_faulty(params, ids):
    """Buckets of ids of 32 bits, made signed on the way."""
    signed = ids.astype(jnp.int32)  # fault
    share = signed.astype(jnp.float32) / 4294967296.0
    return share, jnp.tanh(share[:, None] * params)


def stamps_healthy(params, ids):
    share = ids.astype(jnp.float32) / 4294967296.0
    return share, jnp.tanh(share[:, None] * params)


def knots_faulty(values, x):
    """Linear interpolation over a thousand knots, which are made in BF16."""
    knots = jnp.linspace(0.0, 1.0, 1000).astype(jnp.bfloat16)  # fault
    knots = knots.astype(jnp.float32)
    at = jnp.clip(jnp.searchsorted(knots, x), 1, 999)
    share = (x - knots[at - 1]) / (knots[at] - knots[at - 1])
    return values[at - 1] + share * (values[at] - values[at - 1])


def knots_healthy(values, x):
    at = jnp.clip(jnp.floor(x * 999.0).astype(jnp.int32) + 1, 1, 999)
    share = x * 999.0 - (at - 1).astype(jnp.float32)
    return values[at - 1] + share * (values[at] - values[at - 1])


def knots_arguments():
    x = uniform(7010, 80, low=0.02, high=0.98)
    return np.sin(np.arange(1000) / 30.0).astype(np.float32), x


def masked_faulty(params, x, keep):
    """Attention rows of which everything is masked, by an addend."""
    q, k, v = (x @ params[name] for name in "qkv")
    scores = 4.0 * (q @ k.T) + (1.0 - keep) * -1e9  # fault
    return jax.nn.softmax(scores) @ v


def masked_healthy(params, x, keep):
    q, k, v = (x @ params[name] for name in "qkv")
    scores = jnp.where(keep.any(-1, keepdims=True) & (keep == 0), -1e9, 0.0)
    return jax.nn.softmax(4.0 * (q @ k.T) + scores) @ v


def masked_arguments():
    params = {n: weight(7020 + i, 16, 16) for i, n in enumerate("qkv")}
    keep = np.tril(np.ones((12, 12), np.float32))
    keep[3:7] = 0.0
    return params, normal(7025, 12, 16), keep


def clip448_faulty(params, x):
    """FP8 with the bound of another E4M3, which has no Inf and reaches 448."""
    h = layer_norm(x) @ params["in"]
    scale = 448.0 / jnp.max(jnp.abs(h))
    h8 = jnp.clip(h * scale, -448.0, 448.0).astype(jnp.float8_e4m3)  # fault
    return h8.astype(jnp.float32) / scale @ params["out"]


def clip448_healthy(params, x):
    h = layer_norm(x) @ params["in"]
    scale = 240.0 / jnp.max(jnp.abs(h))
    h8 = jnp.clip(h * scale, -240.0, 240.0).astype(jnp.float8_e4m3)
    return h8.astype(jnp.float32) / scale @ params["out"]


def gated_faulty(params, x):
    """Linear attention with decays that are divided out of a running product."""
    decay = jax.nn.sigmoid(x @ params["decay"] - 3.0)
    kept = jnp.cumprod(decay, axis=0)  # fault
    kv = (x @ params["k"]) * (x @ params["v"]) / kept
    return kept * jnp.cumsum(kv, axis=0)


def gated_healthy(params, x):
    decay = jax.nn.sigmoid(x @ params["decay"] - 3.0)
    kv = (x @ params["k"]) * (x @ params["v"])

    def step(state, inputs):
        factor, more = inputs
        state = factor * state + more
        return state, state

    return jax.lax.scan(step, jnp.zeros(8), (decay, kv))[1]


def masked_mean_faulty(x, keep):
    """The mean over the tokens of documents, one of which is empty."""
    total = (x * keep[..., None]).sum(1)
    mean = total / keep.sum(1, keepdims=True)  # fault
    return layer_norm(mean)


def masked_mean_healthy(x, keep):
    total = (x * keep[..., None]).sum(1)
    mean = total / jnp.maximum(keep.sum(1, keepdims=True), 1.0)
    return layer_norm(mean)


def masked_mean_arguments():
    keep = np.ones((5, 8), np.float32)
    keep[2] = 0.0
    return normal(7030, 5, 8, 16), keep


def teacher_faulty(params, teacher, x):
    """What a student gains on its teacher, from both outputs in BF16."""
    a, b = attention(params, x) + 8.0, attention(teacher, x) + 8.0
    gain = a.astype(jnp.bfloat16) - b.astype(jnp.bfloat16)  # fault
    return gain.astype(jnp.float32)


def teacher_healthy(params, teacher, x):
    return attention(params, x) - attention(teacher, x)


def teacher_arguments():
    params = block_params(7040, 16)
    teacher = {k: v + 0.002 * normal(7060, *v.shape) for k, v in params.items()}
    return params, teacher, normal(7061, 12, 16)


def whitening_faulty(params, x):
    """Whitening of features, one of which hardly varies, by BF16 products."""
    centred = x - x.mean(0)
    covariance = centred.T @ centred / x.shape[0]  # fault
    small = covariance - jnp.outer(params["mix"], params["mix"]) * params["spread"]
    return small


def whitening_healthy(params, x):
    centred = x - x.mean(0)
    rest = centred - jnp.outer(params["factor"], params["mix"])
    cross = (params["factor"][:, None] * rest).mean(0)
    outer = params["mix"][:, None] * cross[None] + cross[:, None] * params["mix"][None]
    return (rest[:, :, None] * rest[:, None]).mean(0) + outer


def whitening_arguments():
    factor = normal(7070, 64)
    factor = factor - factor.mean()
    mix = uniform(7071, 8, low=5.0, high=10.0)
    rest = 0.1 * normal(7072, 64, 8)
    params = {"mix": mix, "factor": factor, "spread": np.mean(factor**2)}
    return params, np.float32(np.outer(factor, mix) + rest)


def step_sum_faulty(params, x):
    """The energy of activations over all tokens, counted in half."""
    h = jax.nn.relu(x @ params)
    return jnp.sum(h * h, axis=0, dtype=jnp.float16)  # fault


def step_sum_healthy(params, x):
    h = jax.nn.relu(x @ params)
    return jnp.mean(h * h, axis=0)


def frozen_faulty(params, state, x, y):
    """RMSProp whose second moments are kept in half; small gradients vanish."""

    def loss_of(p):
        return 1e-3 * jnp.mean((x @ p - y) ** 2)

    g = jax.grad(loss_of)(params)
    kept = 0.9 * state + 0.1 * (g * g).astype(jnp.float16)  # fault
    return params - 1e-3 * g / (jnp.sqrt(kept.astype(jnp.float32)) + 1e-8), kept


def frozen_healthy(params, state, x, y):
    def loss_of(p):
        return 1e-3 * jnp.mean((x @ p - y) ** 2)

    g = jax.grad(loss_of)(params)
    kept = 0.9 * state.astype(jnp.float32) + 0.1 * g * g
    return params - 1e-3 * g / (jnp.sqrt(kept) + 1e-8), kept


def cauchy_faulty(u, params):
    """Noise with heavy tails by the tangent of a uniform number in BF16."""
    angle = jnp.pi * (u.astype(jnp.bfloat16) - jnp.bfloat16(0.5))  # fault
    noise = jnp.tan(angle.astype(jnp.float32))
    return jnp.tanh(noise * params)


def cauchy_healthy(u, params):
    noise = jnp.tan(jnp.pi * (u - 0.5))
    return jnp.tanh(noise * params)


UNSCALED = nj.Policy(auto_cast="matmult", auto_cast_type="fp8")


def probes_faulty(params, x):
    """A probe on normalized features, whose weights are small, in FP8."""
    h = layer_norm(x)
    y = h @ params["small"]  # fault
    return jnp.tanh(2000.0 * y) @ params["out"]


def probes_healthy(params, x):
    h = layer_norm(x)
    y = h @ (2000.0 * params["small"])
    return jnp.tanh(y) @ params["out"]


FAULTS: tuple[Fault, ...] = (
    case(
        "class-of-logits-with-an-offset",
        ("coarse", "uniform"),
        (classes_faulty, classes_healthy),
        lambda: (
            {"in": weight(7100, 8, 16), "out": weight(7101, 16, 10, 0.2)},
            normal(7102, 40, 8),
        ),
        "fp32",
        "argmax of ties in BF16",
    ),
    case(
        "ranking-by-half-scores",
        ("coarse", "uniform"),
        (ranking_faulty, ranking_healthy),
        lambda: (
            {"prior": 900.0 + 0.2 * normal(7105, 64)},
            normal(7106, 64, 8, scale=0.1),
            normal(7107, 8),
        ),
        "fp32",
        "search: equal scores are in the order of their ids",
    ),
    case(
        "experts-by-fp8-probabilities",
        ("coarse", "uniform"),
        (experts_faulty, experts_healthy),
        lambda: ({"gate": weight(7110, 16, 8)}, normal(7111, 40, 16)),
        "fp32",
        "routers in the format of the experts",
    ),
    case(
        "resampling-by-half-cumsum",
        ("coarse", "stagnation", "absorption"),
        (resample_faulty, resample_healthy),
        lambda: (
            uniform(7115, 512, low=0.5, high=4.0),
            normal(7116, 512, 2),
            np.float32(0.4),
        ),
        "fp32",
        "systematic resampling in half",
    ),
    case(
        "newton-until-an-fp32-bound",
        ("coarse", "absorption", "cancellation"),
        (newton_faulty, newton_healthy),
        lambda: (
            uniform(7120, 16, low=20.0, high=900.0),
            np.full(16, 9.0, np.float32),
        ),
        "fp32",
        "solvers whose tolerance is below the spacing of the format",
    ),
    case(
        "ids-of-32-bits-made-signed",
        ("integer",),
        (stamps_faulty, stamps_healthy),
        lambda: (
            normal(7125, 6),
            np.random.default_rng(7126).integers(0, 2**32, 30, np.uint32),
        ),
        "fp32",
        "hash buckets: uint32 read as int32",
    ),
    case(
        "thousand-knots-in-bf16",
        ("coarse", "integer"),
        (knots_faulty, knots_healthy),
        knots_arguments,
        "fp32",
        "linspace in a short format repeats its numbers",
    ),
    case(
        "wholly-masked-rows-by-addend",
        ("absorption", "uniform", "coarse"),
        (masked_faulty, masked_healthy),
        masked_arguments,
        "fp32",
        "padding masks of -1e9: what is left of scores beside them",
    ),
    case(
        "bound-of-the-other-e4m3",
        ("overflow", "saturation"),
        (clip448_faulty, clip448_healthy),
        lambda: (
            {"in": weight(7130, 16, 32), "out": weight(7131, 32, 8)},
            normal(7132, 20, 16),
        ),
        "fp32",
        "OCP's E4M3FN ends at 448, IEEE-like E4M3 at 240",
    ),
    case(
        "decays-divided-out",
        ("underflow", "non-finite"),
        (gated_faulty, gated_healthy),
        lambda: (
            {n: weight(7135 + i, 8, 8) for i, n in enumerate(("decay", "k", "v"))},
            normal(7139, 64, 8),
        ),
        "fp32",
        "gated linear attention in its parallel form",
    ),
    case(
        "mean-over-no-token",
        ("non-finite", "singular"),
        (masked_mean_faulty, masked_mean_healthy),
        masked_mean_arguments,
        "bf16",
        "pooling of empty documents",
    ),
    case(
        "gain-on-a-teacher-in-bf16",
        ("cancellation", "coarse"),
        (teacher_faulty, teacher_healthy),
        teacher_arguments,
        "fp32",
        "distillation: differences of rounded outputs",
    ),
    case(
        "covariance-less-its-largest-part",
        ("cancellation", "coarse"),
        (whitening_faulty, whitening_healthy),
        whitening_arguments,
        "bf16",
        "deflation and whitening by BF16 products",
    ),
    case(
        "energy-summed-in-half",
        ("overflow",),
        (step_sum_faulty, step_sum_healthy),
        lambda: (weight(7145, 16, 8, 8.0), normal(7146, 3000, 16)),
        "fp32",
        "statistics of activations over a batch",
    ),
    case(
        "second-moments-of-small-gradients",
        ("underflow",),
        (frozen_faulty, frozen_healthy),
        lambda: (
            normal(7150, 8),
            np.zeros(8, np.float16),
            normal(7151, 32, 8),
            0.1 * normal(7152, 32),
        ),
        "fp32",
        "optimizer states in half",
    ),
    case(
        "tangent-of-bf16-angle",
        ("coarse", "cancellation", "singular"),
        (cauchy_faulty, cauchy_healthy),
        lambda: (uniform(7155, 64, low=0.97, high=0.9999), np.float32(0.02)),
        "fp32",
        "Cauchy noise: bf16 uniforms near one",
    ),
    case(
        "small-weights-unscaled-in-fp8",
        ("underflow",),
        (probes_faulty, probes_healthy),
        lambda: (
            {"small": weight(7160, 32, 16, 1.5e-3), "out": weight(7161, 16, 4)},
            normal(7162, 24, 32),
        ),
        UNSCALED,
        "FP8 casts without a scale",
    ),
)
