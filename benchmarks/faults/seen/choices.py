"""Faults that show in choices, orders and counts, in loops, and by a policy's casts."""

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import (
    attention,
    block_params,
    layer_norm,
    normal,
    uniform,
    weight,
)

UNSCALED = nj.Policy(auto_cast="matmult", auto_cast_type="fp8")


@fault("coarse", "uniform", policy="fp32")
@source("argmax of ties in BF16")
@inputs("in: 8x16 w @7100, out: 16x10 w*0.2; 40x8 @7102")
def class_of_logits_with_an_offset(params, x):
    """The likeliest of ten classes, from logits with a common offset in BF16."""
    h = jnp.tanh(x @ params["in"])
    logits = (h @ params["out"] + 40.0).astype(jnp.bfloat16)  # fault
    return jnp.argmax(logits, axis=-1)  # -
    # + return jnp.argmax(h @ params["out"], axis=-1)


@fault("coarse", "uniform", policy="fp32")
@source("search: equal scores are in the order of their ids")
@inputs({"prior": lambda: 900.0 + 0.2 * normal(7105, 64)}, "64x8 *0.1 @7106; 8 @7107")
def ranking_by_half_scores(params, documents, query):
    """The order of documents by their score; the sum of two is kept in half."""
    score = (documents @ query + params["prior"]).astype(jnp.float16)  # fault
    return jnp.argsort(-score)  # -
    # + return jnp.argsort(-(documents @ query + params["prior"] - 900.0))


@fault("coarse", "uniform", policy="fp32")
@source("routers in the format of the experts")
@inputs("gate: 16x8 w @7110; 40x16 @7111")
def experts_by_fp8_probabilities(params, x):
    """Two experts of eight for each token, by probabilities in 8 bits."""
    h = layer_norm(x)  # -
    probs = jax.nn.softmax(0.3 * h @ params["gate"]).astype(jnp.float8_e4m3)  # fault
    # + probs = jax.nn.softmax(0.3 * layer_norm(x) @ params["gate"])
    _, chosen = jax.lax.top_k(probs.astype(jnp.float32), 2)  # -
    # + _, chosen = jax.lax.top_k(probs, 2)
    return jnp.sort(chosen, axis=-1)


@fault("coarse", "stagnation", "absorption", policy="fp32")
@source("systematic resampling in half")
@inputs("512 0.5..4 @7115; 512x2 @7116; f32 0.4")
def resampling_by_half_cumsum(weights, particles, u):
    """A particle filter: which particles survive, by a running sum in half."""
    ends = jnp.cumsum(weights.astype(jnp.float16))  # fault
    # + ends = jnp.cumsum(weights)
    places = (jnp.arange(512) + u) / 512.0
    chosen = jnp.searchsorted(ends.astype(jnp.float32) / ends[-1], places)  # -
    # + chosen = jnp.searchsorted(ends / ends[-1], places)
    return chosen, particles[jnp.clip(chosen, 0, 511)]


@fault("integer", policy="fp32")
@source("hash buckets: uint32 read as int32")
@inputs(
    "6 @7125", lambda: np.random.default_rng(7126).integers(0, 2**32, 30, np.uint32)
)
def ids_of_32_bits_made_signed(params, ids):
    """Buckets of ids of 32 bits, made signed on the way."""
    signed = ids.astype(jnp.int32)  # fault
    share = signed.astype(jnp.float32) / 4294967296.0  # -
    # + share = ids.astype(jnp.float32) / 4294967296.0
    return share, jnp.tanh(share[:, None] * params)


@fault("coarse", "integer", policy="fp32")
@source("linspace in a short format repeats its numbers")
@inputs(
    lambda: np.sin(np.arange(1000) / 30.0).astype(np.float32), "80 0.02..0.98 @7010"
)
def thousand_knots_in_bf16(values, x):
    """Linear interpolation over a thousand knots, which are made in BF16."""
    knots = jnp.linspace(0.0, 1.0, 1000).astype(jnp.bfloat16)  # fault
    knots = knots.astype(jnp.float32)  # -
    at = jnp.clip(jnp.searchsorted(knots, x), 1, 999)  # -
    # + at = jnp.clip(jnp.floor(x * 999.0).astype(jnp.int32) + 1, 1, 999)
    share = (x - knots[at - 1]) / (knots[at] - knots[at - 1])  # -
    # + share = x * 999.0 - (at - 1).astype(jnp.float32)
    return values[at - 1] + share * (values[at] - values[at - 1])


def masked_arguments():
    keep = np.tril(np.ones((12, 12), np.float32))
    keep[3:7] = 0.0
    return "q k v: 16x16 w @7020", "12x16 @7025", keep


@fault("absorption", "uniform", "coarse", policy="fp32")
@source("padding masks of -1e9: what is left of scores beside them")
@inputs(by=masked_arguments)
def wholly_masked_rows_by_addend(params, x, keep):
    """Attention rows of which everything is masked, by an addend."""
    q, k, v = (x @ params[name] for name in "qkv")
    scores = 4.0 * (q @ k.T) + (1.0 - keep) * -1e9  # fault
    # + scores = jnp.where(keep.any(-1, keepdims=True) & (keep == 0), -1e9, 0.0)
    return jax.nn.softmax(scores) @ v  # -
    # + return jax.nn.softmax(4.0 * (q @ k.T) + scores) @ v


@fault("overflow", "saturation", policy="fp32")
@source("OCP's E4M3FN ends at 448, IEEE-like E4M3 at 240")
@inputs("in: 16x32 w @7130, out: 32x8 w; 20x16 @7132")
def bound_of_the_other_e4m3(params, x):
    """FP8 with the bound of another E4M3, which has no Inf and reaches 448."""
    h = layer_norm(x) @ params["in"]
    scale = 448.0 / jnp.max(jnp.abs(h))  # -
    # + scale = 240.0 / jnp.max(jnp.abs(h))
    h8 = jnp.clip(h * scale, -448.0, 448.0).astype(jnp.float8_e4m3)  # fault
    # + h8 = jnp.clip(h * scale, -240.0, 240.0).astype(jnp.float8_e4m3)
    return h8.astype(jnp.float32) / scale @ params["out"]


@fault("underflow", "non-finite", policy="fp32")
@source("gated linear attention in its parallel form")
@inputs(
    lambda: {n: weight(7135 + i, 8, 8) for i, n in enumerate(("decay", "k", "v"))},
    "64x8 @7139",
)
def decays_divided_out(params, x):
    """Linear attention with decays that are divided out of a running product."""
    decay = jax.nn.sigmoid(x @ params["decay"] - 3.0)
    kept = jnp.cumprod(decay, axis=0)  # fault
    kv = (x @ params["k"]) * (x @ params["v"]) / kept  # -
    # + kv = (x @ params["k"]) * (x @ params["v"])
    return kept * jnp.cumsum(kv, axis=0)  # -
    # + def step(state, inputs):
    # +     factor, more = inputs
    # +     state = factor * state + more
    # +     return state, state
    # + return jax.lax.scan(step, jnp.zeros(8), (decay, kv))[1]


@fault("non-finite", "singular")
@source("pooling of empty documents")
@inputs("5x8x16 @7030; 5x8 =1 [2]=0")
def mean_over_no_token(x, keep):
    """The mean over the tokens of documents, one of which is empty."""
    total = (x * keep[..., None]).sum(1)
    mean = total / keep.sum(1, keepdims=True)  # fault
    # + mean = total / jnp.maximum(keep.sum(1, keepdims=True), 1.0)
    return layer_norm(mean)


def teacher_arguments():
    params = block_params(7040, 16)
    teacher = {k: v + 0.002 * normal(7060, *v.shape) for k, v in params.items()}
    return params, teacher, "12x16 @7061"


@fault("cancellation", "coarse", policy="fp32")
@source("distillation: differences of rounded outputs")
@inputs(by=teacher_arguments)
def gain_on_a_teacher_in_bf16(params, teacher, x):
    """What a student gains on its teacher, from both outputs in BF16."""
    a, b = attention(params, x) + 8.0, attention(teacher, x) + 8.0  # -
    gain = a.astype(jnp.bfloat16) - b.astype(jnp.bfloat16)  # fault
    return gain.astype(jnp.float32)  # -
    # + return attention(params, x) - attention(teacher, x)


def whitening_arguments():
    factor = normal(7070, 64)
    factor = factor - factor.mean()
    mix = uniform(7071, 8, low=5.0, high=10.0)
    rest = 0.1 * normal(7072, 64, 8)
    params = {"mix": mix, "factor": factor, "spread": np.mean(factor**2)}
    return params, np.float32(np.outer(factor, mix) + rest)


@fault("cancellation", "coarse")
@source("deflation and whitening by BF16 products")
@inputs(by=whitening_arguments)
def covariance_less_its_largest_part(params, x):
    """Whitening of features, one of which hardly varies, by BF16 products."""
    centred = x - x.mean(0)
    covariance = centred.T @ centred / x.shape[0]  # fault
    small = covariance - jnp.outer(params["mix"], params["mix"]) * params["spread"]  # -
    return small  # -
    # + rest = centred - jnp.outer(params["factor"], params["mix"])
    # + cross = (params["factor"][:, None] * rest).mean(0)
    # + outer = (
    # +     params["mix"][:, None] * cross[None] + cross[:, None] * params["mix"][None]
    # + )
    # + return (rest[:, :, None] * rest[:, None]).mean(0) + outer


@fault("overflow", policy="fp32")
@source("statistics of activations over a batch")
@inputs("16x8 w*8 @7145; 3000x16 @7146")
def energy_summed_in_half(params, x):
    """The energy of activations over all tokens, counted in half."""
    h = jax.nn.relu(x @ params)
    return jnp.sum(h * h, axis=0, dtype=jnp.float16)  # fault
    # + return jnp.mean(h * h, axis=0)


@fault("underflow", policy="fp32")
@source("optimizer states in half")
@inputs(
    "8 @7150", np.zeros(8, np.float16), "32x8 @7151", lambda: 0.1 * normal(7152, 32)
)
def second_moments_of_small_gradients(params, state, x, y):
    """RMSProp whose second moments are kept in half; small gradients vanish."""

    def loss_of(p):
        return 1e-3 * jnp.mean((x @ p - y) ** 2)

    g = jax.grad(loss_of)(params)
    kept = 0.9 * state + 0.1 * (g * g).astype(jnp.float16)  # fault
    # + kept = 0.9 * state.astype(jnp.float32) + 0.1 * g * g
    return params - 1e-3 * g / (jnp.sqrt(kept.astype(jnp.float32)) + 1e-8), kept  # -
    # + return params - 1e-3 * g / (jnp.sqrt(kept) + 1e-8), kept


@fault("coarse", "cancellation", "singular", policy="fp32")
@source("Cauchy noise: bf16 uniforms near one")
@inputs("64 0.97..0.9999 @7155; f32 0.02")
def tangent_of_bf16_angle(u, params):
    """Noise with heavy tails by the tangent of a uniform number in BF16."""
    angle = jnp.pi * (u.astype(jnp.bfloat16) - jnp.bfloat16(0.5))  # fault
    noise = jnp.tan(angle.astype(jnp.float32))  # -
    # + noise = jnp.tan(jnp.pi * (u - 0.5))
    return jnp.tanh(noise * params)


@fault("underflow", policy=UNSCALED)
@source("FP8 casts without a scale")
@inputs("small: 32x16 w*0.0015 @7160, out: 16x4 w; 24x32 @7162")
def small_weights_unscaled_in_fp8(params, x):
    """A probe on normalized features, whose weights are small, in FP8."""
    h = layer_norm(x)
    y = h @ params["small"]  # fault
    # + y = h @ (2000.0 * params["small"])
    return jnp.tanh(2000.0 * y) @ params["out"]  # -
    # + return jnp.tanh(y) @ params["out"]
