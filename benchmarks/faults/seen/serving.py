"""Faults of data pipelines, of serving, and of what comes before and after a model."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import (
    convolution,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)


def volume_arguments():
    audio = integers(4001, 2000, 8, 64).astype(np.float32) - 1000
    audio[6:] = 0
    return "8x3 w @4002", audio


@fault("singular", "non-finite")
@source("pydub and torchaudio: -inf decibels of silent blocks")
@inputs(by=volume_arguments)
def decibels_of_silence(params, audio):
    """Loudness in decibels of blocks of samples; the last blocks are silent."""
    power = jnp.mean((audio / 32768.0) ** 2, axis=1)
    level = 10.0 * jnp.log10(power)  # fault
    # + level = 10.0 * jnp.log10(power + 1e-10)
    return level, jnp.tanh(level @ params)


@fault("cancellation", policy="fp32")
@source("Spark and tf.Transform: variances merged as E[x^2] - E[x]^2")
@inputs("6x3 w @4004; 4x50x6 *0.5 +1500 @4005")
def shard_variances_from_moments(params, shards):
    """Feature statistics of shards, merged from sums and sums of squares."""
    n = shards.shape[0] * shards.shape[1]
    total = jax.vmap(lambda s: s.sum(0))(shards).sum(0)  # -
    square = jax.vmap(lambda s: (s * s).sum(0))(shards).sum(0)  # -
    variance = square / n - (total / n) ** 2  # fault
    # + mean = jax.vmap(lambda s: s.sum(0))(shards).sum(0) / n
    # + variance = jax.vmap(lambda s: ((s - mean) ** 2).sum(0))(shards).sum(0) / n
    x = (shards[0] - total / n) * jax.lax.rsqrt(variance + 1e-5)  # -
    # + x = (shards[0] - mean) * jax.lax.rsqrt(variance + 1e-5)
    return variance, jax.nn.relu(x @ params)


@fault("integer")
@source("YouTube's counter of Gangnam Style")
@inputs("32x4 w @4007; 300 int 50000000..450000000 @4008; 300 int 0..32 @4009")
def view_counts_in_int32(params, views, ids):
    """Inverse frequencies of items from view counts of a large site."""
    counts = jnp.zeros(32, jnp.int32).at[ids].add(views)  # fault
    # + counts = jnp.zeros(32).at[ids].add(views.astype(jnp.float32))
    idf = jnp.log(1.0 + counts.astype(jnp.float32) / 1e6)  # -
    # + idf = jnp.log(1.0 + counts / 1e6)
    return idf, jax.nn.softmax(idf @ params)


@fault("absorption", "coarse", "integer")
@source("Hugging Face: position_ids in the model's dtype in generate")
@inputs(
    {
        "q": "8x8 w @4010",
        "frequencies": lambda: np.asarray([1.0, 0.1, 0.01, 0.001], np.float32),
    },
    "8x8 @4011; f32 2560",
)
def decode_positions_from_bf16_start(params, x, start):
    """Decoding far into a document: the new positions are made from a BF16 start."""
    start = start.astype(jnp.bfloat16)  # -
    place = start + jnp.arange(8, dtype=jnp.bfloat16)  # fault
    # + place = start + jnp.arange(8, dtype=jnp.float32)
    angle = place.astype(jnp.float32)[:, None] * params["frequencies"]  # -
    # + angle = place[:, None] * params["frequencies"]
    q = x @ params["q"]
    a, b = jnp.split(q, 2, axis=-1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return place.astype(jnp.float32), jnp.concatenate(
        [a * cos - b * sin, a * sin + b * cos], axis=-1
    )  # -
    # + return place, jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def beams_arguments():
    logits = normal(4020, 60, 5, 7)
    logits[..., 3] += 9.0
    return logits, -1500.0 - np.arange(5, dtype=np.float32) * 8


@fault("absorption", "stagnation", policy="fp16")
@source("fairseq: beam scores of long outputs in FP16")
@inputs(by=beams_arguments)
def beam_scores_in_half(logits, starts):
    """Beam search: the scores of long hypotheses are kept in half."""

    def extend(score, row):  # -
        best = jax.nn.log_softmax(row).max(-1)
        score = score + best.astype(jnp.float16)  # fault
        return score, None

    # + def extend(gain, row):
    # +     return gain + jax.nn.log_softmax(row).max(-1), None

    scores, _ = jax.lax.scan(extend, starts.astype(jnp.float16), logits)  # -
    gain = scores.astype(jnp.float32) - starts  # -
    # + gain, _ = jax.lax.scan(extend, jnp.zeros_like(starts), logits)
    return gain, jnp.argmax(gain)


def calibrate_arguments():
    spread = np.where(np.arange(8) < 6, 1e-3, 5.0).astype(np.float32)
    return weight(4030, 16, 8) * spread, "10x16 @4031", spread


@fault("saturation", "underflow", "coarse")
@source("torch.ao: per-tensor instead of per-channel observers")
@inputs(by=calibrate_arguments)
def int8_scale_of_the_wrong_axis(weights, x, maximum):
    """INT8 weights per channel; one scale was written for the other axis."""
    scale = jnp.max(jnp.abs(weights)) / 127.0  # -
    # + scale = jnp.max(jnp.abs(weights), axis=0) / 127.0
    q = jnp.round(weights / scale)  # here
    w8 = jnp.clip(q, -127, 127).astype(jnp.int8)
    return jax.nn.relu(x @ (w8.astype(jnp.float32) * scale)) / maximum


def retrieval_arguments():
    keys = normal(4040, 8, 16)
    return keys + 0.1 * normal(4041, 8, 16), keys, "f32 0.07"


@fault("overflow", policy="fp16")
@source("CLIP and SimCLR in autocast: exp(1 / 0.07) exceeds 65504")
@inputs(by=retrieval_arguments)
def contrastive_exponentials_in_half(queries, keys, temperature):
    """A contrastive score: cosines over a small temperature, exponentials in half."""

    def unit(x):
        return x * jax.lax.rsqrt((x * x).sum(-1, keepdims=True))

    logits = unit(queries) @ unit(keys).T / temperature
    e = jnp.exp(logits.astype(jnp.float16))  # fault
    p = e.astype(jnp.float32) / e.astype(jnp.float32).sum(-1, keepdims=True)  # -
    return -jnp.log(jnp.diagonal(p))  # -
    # + return -jnp.diagonal(jax.nn.log_softmax(logits))


@fault("non-finite", "singular")
@source("sentence-transformers: division by the sum of an all-zero mask")
@inputs(
    "embed: 40x8 @4050, out: 8x3 w; 6x9 int 0..40 @4052",
    lambda: np.asarray([4, 0, 9, 2, 0, 5], np.int32),
)
def mean_of_empty_sentence(params, tokens, lengths):
    """The mean of the words of a sentence; some sentences of a batch are empty."""
    inside = jnp.arange(tokens.shape[1])[None] < lengths[:, None]
    total = jnp.where(inside[..., None], params["embed"][tokens], 0.0).sum(1)
    mean = total / inside.sum(1, keepdims=True)  # fault
    # + mean = total / jnp.maximum(inside.sum(1, keepdims=True), 1)
    return layer_norm(mean) @ params["out"]


@fault("coarse", "integer")
@source("feature stores that compress columns to 8 bits")
@inputs(
    "in: 6 @4054, out: 6x2 w",
    lambda: 1940.0 + integers(4056, 70, 20).astype(np.float32),
    "f32 2025",
)
def birth_years_in_e5m2(params, born, now):
    """Birth years as E5M2 features in a feature store; ages are computed from them."""
    stored = born.astype(jnp.float8_e5m2)  # fault
    age = now - stored.astype(jnp.float32)  # -
    # + age = now - born
    h = jnp.tanh(age[:, None] * params["in"] / 40.0)
    return age, h @ params["out"]


@fault("coarse", policy="fp16")
@source("detection heads: boxes as fractions in FP16 on large images")
@inputs("4000x8 @4057; 12 0.55..0.95 @4058; 16x3 w @4059")
def crop_row_from_half_fraction(image, corner, w):
    """Rows of a tall scan around a mark whose place is a fraction in half."""
    at = corner.astype(jnp.float16) * jnp.float16(4000)  # fault
    row = at.astype(jnp.int32)  # -
    # + row = (corner * 4000.0).astype(jnp.int32)
    lines = jax.vmap(lambda r: jax.lax.dynamic_slice(image, (r, 0 * r), (2, 8)))(row)
    return jnp.tanh(lines.reshape(row.shape[0], -1) @ w)


@fault("overflow", policy="fp16")
@source("SENet in half: sums of a pool before their division")
@inputs(
    {"kernel": lambda: np.abs(normal(4064, 3, 3, 1, 4)), "out": "4x2 w @4065"},
    "2x20x20x1 30..60 @4066",
)
def pool_sum_of_bright_image_in_half(params, image):
    """A global pool: the sum of many activations, in half, before the division."""
    h = jax.nn.relu(convolution(image, params["kernel"])).astype(jnp.float16)
    total = jnp.sum(h, axis=(1, 2))  # fault
    mean = total / jnp.float16(h.shape[1] * h.shape[2])  # -
    return mean.astype(jnp.float32) @ params["out"]  # -
    # + return h.astype(jnp.float32).mean((1, 2)) @ params["out"]


@fault("integer", "coarse")
@source("Patriot: time since start in a format without its digits")
@inputs(
    "16x4 w @4061",
    lambda: (1_700_000_000 + np.cumsum(integers(4060, 90, 17) + 20)).astype(np.int32),
    lambda: np.cumsum(uniform(4062, 17)).astype(np.float32),
)
def microsecond_ticks_through_fp32(params, ticks, values):
    """Rates of counters: differences of microseconds that went through FP32."""
    t = ticks.astype(jnp.float32)  # fault
    rate = jnp.diff(values) / (jnp.diff(t) + 1e-3)  # -
    # + rate = jnp.diff(values) / (jnp.diff(ticks).astype(jnp.float32) + 1e-3)
    return rate, jax.nn.gelu(rate @ params)


@fault("underflow")
@source("products of experts: naive normalization of tiny products")
@inputs("80x5x6 *3 @4070; 80 0.8..1.2 @4071")
def ensemble_product_of_probabilities(logits, weights):
    """An ensemble votes: products of many small class probabilities."""
    p = jax.nn.softmax(logits)  # -
    joint = jnp.prod(p ** weights[:, None, None], axis=0)  # fault
    # + joint = jnp.sum(jax.nn.log_softmax(logits) * weights[:, None, None], axis=0)
    return joint / joint.sum(-1, keepdims=True)  # -
    # + return jax.nn.softmax(joint)


@fault("stale-scale", "saturation", "overflow")
@source("vLLM: kv_cache_dtype=fp8 with scales of a short calibration")
@inputs("k: 8x8 w*40 @4080, q: 8x8 w; 6x8 @4082; 5x8 *2 @4083; f32 0.02")
def cache_scale_of_the_first_prompt(params, x, cache, scale):
    """A KV cache in E4M3; the scale is that of the first prompt of the day."""
    k = x @ params["k"]
    stored = (k / scale).astype(jnp.float8_e4m3)  # fault
    # + fresh = jnp.max(jnp.abs(k)) / 240.0
    # + stored = (k / fresh).astype(jnp.float8_e4m3)
    k = jnp.concatenate([cache, stored.astype(jnp.float32) * scale])  # -
    # + k = jnp.concatenate([cache, stored.astype(jnp.float32) * fresh])
    p = jax.nn.softmax(x @ params["q"] @ k.T / 60.0)
    return k, p @ k
