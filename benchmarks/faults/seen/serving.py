"""Faults of data pipelines, of serving, and of what comes before and after a model."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import (
    convolution,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)


def volume_faulty(params, audio):
    """Loudness in decibels of blocks of samples; the last blocks are silent."""
    power = jnp.mean((audio / 32768.0) ** 2, axis=1)
    level = 10.0 * jnp.log10(power)  # fault
    return level, jnp.tanh(level @ params)


def volume_healthy(params, audio):
    power = jnp.mean((audio / 32768.0) ** 2, axis=1)
    level = 10.0 * jnp.log10(power + 1e-10)
    return level, jnp.tanh(level @ params)


def volume_arguments():
    audio = integers(4001, 2000, 8, 64).astype(np.float32) - 1000
    audio[6:] = 0
    return weight(4002, 8, 3), audio


def zscore_faulty(params, shards):
    """Feature statistics of shards, merged from sums and sums of squares."""
    n = shards.shape[0] * shards.shape[1]
    total = jax.vmap(lambda s: s.sum(0))(shards).sum(0)
    square = jax.vmap(lambda s: (s * s).sum(0))(shards).sum(0)
    variance = square / n - (total / n) ** 2  # fault
    x = (shards[0] - total / n) * jax.lax.rsqrt(variance + 1e-5)
    return variance, jax.nn.relu(x @ params)


def zscore_healthy(params, shards):
    n = shards.shape[0] * shards.shape[1]
    mean = jax.vmap(lambda s: s.sum(0))(shards).sum(0) / n
    variance = jax.vmap(lambda s: ((s - mean) ** 2).sum(0))(shards).sum(0) / n
    x = (shards[0] - mean) * jax.lax.rsqrt(variance + 1e-5)
    return variance, jax.nn.relu(x @ params)


def popularity_faulty(params, views, ids):
    """Inverse frequencies of items from view counts of a large site."""
    counts = jnp.zeros(32, jnp.int32).at[ids].add(views)  # fault
    idf = jnp.log(1.0 + counts.astype(jnp.float32) / 1e6)
    return idf, jax.nn.softmax(idf @ params)


def popularity_healthy(params, views, ids):
    counts = jnp.zeros(32).at[ids].add(views.astype(jnp.float32))
    idf = jnp.log(1.0 + counts / 1e6)
    return idf, jax.nn.softmax(idf @ params)


def rope_cache_faulty(params, x, start):
    """Decoding far into a document: the new positions are made from a BF16 start."""
    start = start.astype(jnp.bfloat16)
    place = start + jnp.arange(8, dtype=jnp.bfloat16)  # fault
    angle = place.astype(jnp.float32)[:, None] * params["frequencies"]
    q = x @ params["q"]
    a, b = jnp.split(q, 2, axis=-1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return place.astype(jnp.float32), jnp.concatenate(
        [a * cos - b * sin, a * sin + b * cos], axis=-1
    )


def rope_cache_healthy(params, x, start):
    place = start + jnp.arange(8, dtype=jnp.float32)
    angle = place[:, None] * params["frequencies"]
    q = x @ params["q"]
    a, b = jnp.split(q, 2, axis=-1)
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    return place, jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def rope_cache_arguments():
    params = {
        "q": weight(4010, 8, 8),
        "frequencies": np.asarray([1.0, 0.1, 0.01, 0.001], np.float32),
    }
    return params, normal(4011, 8, 8), np.float32(2560.0)


def beams_faulty(logits, starts):
    """Beam search: the scores of long hypotheses are kept in half."""

    def extend(score, row):
        best = jax.nn.log_softmax(row).max(-1)
        score = score + best.astype(jnp.float16)  # fault
        return score, None

    scores, _ = jax.lax.scan(extend, starts.astype(jnp.float16), logits)
    gain = scores.astype(jnp.float32) - starts
    return gain, jnp.argmax(gain)


def beams_healthy(logits, starts):
    def extend(gain, row):
        return gain + jax.nn.log_softmax(row).max(-1), None

    gain, _ = jax.lax.scan(extend, jnp.zeros_like(starts), logits)
    return gain, jnp.argmax(gain)


def beams_arguments():
    logits = normal(4020, 60, 5, 7)
    logits[..., 3] += 9.0
    return logits, -1500.0 - np.arange(5, dtype=np.float32) * 8


def calibrate_faulty(weights, x, maximum):
    """INT8 weights per channel; one scale was written for the other axis."""
    scale = jnp.max(jnp.abs(weights)) / 127.0
    q = jnp.round(weights / scale)  # fault
    w8 = jnp.clip(q, -127, 127).astype(jnp.int8)
    return jax.nn.relu(x @ (w8.astype(jnp.float32) * scale)) / maximum


def calibrate_healthy(weights, x, maximum):
    scale = jnp.max(jnp.abs(weights), axis=0) / 127.0
    q = jnp.round(weights / scale)
    w8 = jnp.clip(q, -127, 127).astype(jnp.int8)
    return jax.nn.relu(x @ (w8.astype(jnp.float32) * scale)) / maximum


def calibrate_arguments():
    spread = np.where(np.arange(8) < 6, 1e-3, 5.0).astype(np.float32)
    return weight(4030, 16, 8) * spread, normal(4031, 10, 16), spread


def retrieval_faulty(queries, keys, temperature):
    """A contrastive score: cosines over a small temperature, exponentials in half."""

    def unit(x):
        return x * jax.lax.rsqrt((x * x).sum(-1, keepdims=True))

    logits = unit(queries) @ unit(keys).T / temperature
    e = jnp.exp(logits.astype(jnp.float16))  # fault
    p = e.astype(jnp.float32) / e.astype(jnp.float32).sum(-1, keepdims=True)
    return -jnp.log(jnp.diagonal(p))


def retrieval_healthy(queries, keys, temperature):
    def unit(x):
        return x * jax.lax.rsqrt((x * x).sum(-1, keepdims=True))

    logits = unit(queries) @ unit(keys).T / temperature
    return -jnp.diagonal(jax.nn.log_softmax(logits))


def retrieval_arguments():
    keys = normal(4040, 8, 16)
    return keys + 0.1 * normal(4041, 8, 16), keys, np.float32(0.07)


def pads_faulty(params, tokens, lengths):
    """The mean of the words of a sentence; some sentences of a batch are empty."""
    inside = jnp.arange(tokens.shape[1])[None] < lengths[:, None]
    total = jnp.where(inside[..., None], params["embed"][tokens], 0.0).sum(1)
    mean = total / inside.sum(1, keepdims=True)  # fault
    return layer_norm(mean) @ params["out"]


def pads_healthy(params, tokens, lengths):
    inside = jnp.arange(tokens.shape[1])[None] < lengths[:, None]
    total = jnp.where(inside[..., None], params["embed"][tokens], 0.0).sum(1)
    mean = total / jnp.maximum(inside.sum(1, keepdims=True), 1)
    return layer_norm(mean) @ params["out"]


def ages_faulty(params, born, now):
    """Birth years as E5M2 features in a feature store; ages are computed from them."""
    stored = born.astype(jnp.float8_e5m2)  # fault
    age = now - stored.astype(jnp.float32)
    h = jnp.tanh(age[:, None] * params["in"] / 40.0)
    return age, h @ params["out"]


def ages_healthy(params, born, now):
    age = now - born
    h = jnp.tanh(age[:, None] * params["in"] / 40.0)
    return age, h @ params["out"]


def crop_faulty(image, corner, w):
    """Rows of a tall scan around a mark whose place is a fraction in half."""
    at = corner.astype(jnp.float16) * jnp.float16(4000)  # fault
    row = at.astype(jnp.int32)
    lines = jax.vmap(lambda r: jax.lax.dynamic_slice(image, (r, 0 * r), (2, 8)))(row)
    return jnp.tanh(lines.reshape(row.shape[0], -1) @ w)


def crop_healthy(image, corner, w):
    row = (corner * 4000.0).astype(jnp.int32)
    lines = jax.vmap(lambda r: jax.lax.dynamic_slice(image, (r, 0 * r), (2, 8)))(row)
    return jnp.tanh(lines.reshape(row.shape[0], -1) @ w)


def pooled_faulty(params, image):
    """A global pool: the sum of many activations, in half, before the division."""
    h = jax.nn.relu(convolution(image, params["kernel"])).astype(jnp.float16)
    total = jnp.sum(h, axis=(1, 2))  # fault
    mean = total / jnp.float16(h.shape[1] * h.shape[2])
    return mean.astype(jnp.float32) @ params["out"]


def pooled_healthy(params, image):
    h = jax.nn.relu(convolution(image, params["kernel"])).astype(jnp.float16)
    return h.astype(jnp.float32).mean((1, 2)) @ params["out"]


def clock_faulty(params, ticks, values):
    """Rates of counters: differences of microseconds that went through FP32."""
    t = ticks.astype(jnp.float32)  # fault
    rate = jnp.diff(values) / (jnp.diff(t) + 1e-3)
    return rate, jax.nn.gelu(rate @ params)


def clock_healthy(params, ticks, values):
    rate = jnp.diff(values) / (jnp.diff(ticks).astype(jnp.float32) + 1e-3)
    return rate, jax.nn.gelu(rate @ params)


def clock_arguments():
    gaps = integers(4060, 90, 17) + 20
    ticks = (1_700_000_000 + np.cumsum(gaps)).astype(np.int32)
    return weight(4061, 16, 4), ticks, np.cumsum(uniform(4062, 17)).astype(np.float32)


def voting_faulty(logits, weights):
    """An ensemble votes: products of many small class probabilities."""
    p = jax.nn.softmax(logits)
    joint = jnp.prod(p ** weights[:, None, None], axis=0)  # fault
    return joint / joint.sum(-1, keepdims=True)


def voting_healthy(logits, weights):
    joint = jnp.sum(jax.nn.log_softmax(logits) * weights[:, None, None], axis=0)
    return jax.nn.softmax(joint)


def kv_faulty(params, x, cache, scale):
    """A KV cache in E4M3; the scale is that of the first prompt of the day."""
    k = x @ params["k"]
    stored = (k / scale).astype(jnp.float8_e4m3)  # fault
    k = jnp.concatenate([cache, stored.astype(jnp.float32) * scale])
    p = jax.nn.softmax(x @ params["q"] @ k.T / 60.0)
    return k, p @ k


def kv_healthy(params, x, cache, scale):
    k = x @ params["k"]
    fresh = jnp.max(jnp.abs(k)) / 240.0
    stored = (k / fresh).astype(jnp.float8_e4m3)
    k = jnp.concatenate([cache, stored.astype(jnp.float32) * fresh])
    p = jax.nn.softmax(x @ params["q"] @ k.T / 60.0)
    return k, p @ k


def case(name, kinds, parts, arguments, policy, source):
    """A fault, from the pair (faulty, healthy)."""
    return Fault(
        name=name,
        kinds=kinds,
        faulty=parts[0],
        healthy=parts[1],
        arguments=arguments,
        policy=policy,
        source=source,
    )


FAULTS: tuple[Fault, ...] = (
    case(
        "decibels-of-silence",
        ("singular", "non-finite"),
        (volume_faulty, volume_healthy),
        volume_arguments,
        "bf16",
        "pydub and torchaudio: -inf decibels of silent blocks",
    ),
    case(
        "shard-variances-from-moments",
        ("cancellation",),
        (zscore_faulty, zscore_healthy),
        lambda: (weight(4004, 6, 3), normal(4005, 4, 50, 6, shift=1500.0, scale=0.5)),
        "fp32",
        "Spark and tf.Transform: variances merged as E[x^2] - E[x]^2",
    ),
    case(
        "view-counts-in-int32",
        ("integer",),
        (popularity_faulty, popularity_healthy),
        lambda: (
            weight(4007, 32, 4),
            integers(4008, 400_000_000, 300) + np.int32(50_000_000),
            integers(4009, 32, 300),
        ),
        "bf16",
        "YouTube's counter of Gangnam Style",
    ),
    case(
        "decode-positions-from-bf16-start",
        ("absorption", "coarse", "integer"),
        (rope_cache_faulty, rope_cache_healthy),
        rope_cache_arguments,
        "bf16",
        "Hugging Face: position_ids in the model's dtype in generate",
    ),
    case(
        "beam-scores-in-half",
        ("absorption", "stagnation"),
        (beams_faulty, beams_healthy),
        beams_arguments,
        "fp16",
        "fairseq: beam scores of long outputs in FP16",
    ),
    case(
        "int8-scale-of-the-wrong-axis",
        ("saturation", "underflow", "coarse"),
        (calibrate_faulty, calibrate_healthy),
        calibrate_arguments,
        "bf16",
        "torch.ao: per-tensor instead of per-channel observers",
    ),
    case(
        "contrastive-exponentials-in-half",
        ("overflow",),
        (retrieval_faulty, retrieval_healthy),
        retrieval_arguments,
        "fp16",
        "CLIP and SimCLR in autocast: exp(1 / 0.07) exceeds 65504",
    ),
    case(
        "mean-of-empty-sentence",
        ("non-finite", "singular"),
        (pads_faulty, pads_healthy),
        lambda: (
            {"embed": normal(4050, 40, 8), "out": weight(4051, 8, 3)},
            integers(4052, 40, 6, 9),
            np.asarray([4, 0, 9, 2, 0, 5], np.int32),
        ),
        "bf16",
        "sentence-transformers: division by the sum of an all-zero mask",
    ),
    case(
        "birth-years-in-e5m2",
        ("coarse", "integer"),
        (ages_faulty, ages_healthy),
        lambda: (
            {"in": normal(4054, 6), "out": weight(4055, 6, 2)},
            1940.0 + integers(4056, 70, 20).astype(np.float32),
            np.float32(2025.0),
        ),
        "bf16",
        "feature stores that compress columns to 8 bits",
    ),
    case(
        "crop-row-from-half-fraction",
        ("coarse",),
        (crop_faulty, crop_healthy),
        lambda: (
            normal(4057, 4000, 8),
            uniform(4058, 12, low=0.55, high=0.95),
            weight(4059, 16, 3),
        ),
        "fp16",
        "detection heads: boxes as fractions in FP16 on large images",
    ),
    case(
        "pool-sum-of-bright-image-in-half",
        ("overflow",),
        (pooled_faulty, pooled_healthy),
        lambda: (
            {"kernel": np.abs(normal(4064, 3, 3, 1, 4)), "out": weight(4065, 4, 2)},
            uniform(4066, 2, 20, 20, 1, low=30.0, high=60.0),
        ),
        "fp16",
        "SENet in half: sums of a pool before their division",
    ),
    case(
        "microsecond-ticks-through-fp32",
        ("integer", "coarse"),
        (clock_faulty, clock_healthy),
        clock_arguments,
        "bf16",
        "Patriot: time since start in a format without its digits",
    ),
    case(
        "ensemble-product-of-probabilities",
        ("underflow",),
        (voting_faulty, voting_healthy),
        lambda: (
            normal(4070, 80, 5, 6, scale=3.0),
            uniform(4071, 80, low=0.8, high=1.2),
        ),
        "bf16",
        "products of experts: naive normalization of tiny products",
    ),
    case(
        "cache-scale-of-the-first-prompt",
        ("stale-scale", "saturation", "overflow"),
        (kv_faulty, kv_healthy),
        lambda: (
            {"k": weight(4080, 8, 8, 40.0), "q": weight(4081, 8, 8)},
            normal(4082, 6, 8),
            normal(4083, 5, 8, scale=2.0),
            np.float32(0.02),
        ),
        "bf16",
        "vLLM: kv_cache_dtype=fp8 with scales of a short calibration",
    ),
)
