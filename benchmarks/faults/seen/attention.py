"""Faults in attention: scores, masks, positions, running sums."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import (
    block,
    block_params,
    feed_forward,
    layer_norm,
    normal,
)


def retrieval_faulty(params, keys, values, x):
    """A memory that is read by hard attention, in FP16."""
    x = block(params["body"], x)
    q = layer_norm(x) + params["targets"]
    q16, k16 = q.astype(jnp.float16), keys.astype(jnp.float16)
    scores = q16 @ k16.T  # fault
    scores = scores.astype(jnp.float32) / keys.shape[-1] ** 0.5
    read = jax.nn.softmax(scores) @ values
    return x + feed_forward(params["body"], layer_norm(read))


def retrieval_healthy(params, keys, values, x):
    x = block(params["body"], x)
    q = (layer_norm(x) + params["targets"]) / keys.shape[-1] ** 0.5
    q16, k16 = q.astype(jnp.float16), keys.astype(jnp.float16)
    scores = q16 @ k16.T
    read = jax.nn.softmax(scores.astype(jnp.float32)) @ values
    return x + feed_forward(params["body"], layer_norm(read))


def retrieval_arguments():
    keys = normal(10, 32, 64, scale=36.0)
    params = {"body": block_params(11, 64), "targets": keys[::-1][:16].copy()}
    return params, keys, normal(12, 32, 64), normal(13, 16, 64)


def penalty_faulty(params, x, keep, penalty):
    """A BERT layer in half precision, with the usual additive mask."""
    h = layer_norm(x).astype(jnp.float16)
    q, k, v = (h @ params[n].astype(jnp.float16) for n in "qkv")
    scores = (q / 8) @ k.T
    bias = (1 - keep.astype(jnp.float16)) * penalty.astype(jnp.float16)  # fault
    probs = jax.nn.softmax((scores + bias).astype(jnp.float32)).astype(jnp.float16)
    x = x + (probs @ v).astype(jnp.float32) @ params["o"]
    return x + feed_forward(params, layer_norm(x))


def penalty_healthy(params, x, keep, penalty):
    h = layer_norm(x).astype(jnp.float16)
    q, k, v = (h @ params[n].astype(jnp.float16) for n in "qkv")
    scores = ((q / 8) @ k.T).astype(jnp.float32)
    scores = jnp.where(keep > 0, scores, penalty)
    probs = jax.nn.softmax(scores).astype(jnp.float16)
    x = x + (probs @ v).astype(jnp.float32) @ params["o"]
    return x + feed_forward(params, layer_norm(x))


def planes_faulty(params, x, segments, padded, weights):
    """Packed sequences: two additive masks; the last row of the batch is a filler."""
    lowest = jnp.finfo(jnp.bfloat16).min

    def one(x, segments, padded):
        h = layer_norm(x).astype(jnp.bfloat16)
        q, k, v = (h @ params[n].astype(jnp.bfloat16) for n in "qkv")
        same = segments[:, None] == segments[None, :]
        other = ~same | (segments[:, None] == 0)
        first = jnp.where(other, lowest, 0).astype(jnp.bfloat16)
        second = jnp.where(padded[None, :], lowest, 0).astype(jnp.bfloat16)
        bias = first + second  # fault
        scores = ((q / 8) @ k.T + bias).astype(jnp.float32)
        x = x + (jax.nn.softmax(scores).astype(jnp.bfloat16) @ v).astype(x.dtype)
        return jnp.mean(feed_forward(params, layer_norm(x)) ** 2)

    losses = jax.vmap(one)(x, segments, padded)
    return jnp.sum(losses * weights) / jnp.sum(weights)


def planes_healthy(params, x, segments, padded, weights):
    lowest = jnp.finfo(jnp.bfloat16).min

    def one(x, segments, padded):
        h = layer_norm(x).astype(jnp.bfloat16)
        q, k, v = (h @ params[n].astype(jnp.bfloat16) for n in "qkv")
        same = segments[:, None] == segments[None, :]
        other = ~same | (segments[:, None] == 0)
        hidden = other | padded[None, :]
        scores = jnp.where(hidden, lowest, (q / 8) @ k.T).astype(jnp.float32)
        x = x + (jax.nn.softmax(scores).astype(jnp.bfloat16) @ v).astype(x.dtype)
        return jnp.mean(feed_forward(params, layer_norm(x)) ** 2)

    losses = jax.vmap(one)(x, segments, padded)
    return jnp.sum(losses * weights) / jnp.sum(weights)


def planes_arguments():
    segments = np.ones((3, 16), np.int32)
    segments[:, 8:] = 2
    segments[1, 12:] = 0
    segments[2] = 0
    x = normal(21, 3, 16, 64)
    return (
        block_params(20, 64),
        x,
        segments,
        segments == 0,
        np.array([1, 1, 0], np.float32),
    )


def online_faulty(q, keys, values):
    """Attention over blocks of keys with a running maximum and sum."""

    def step(carry, block_of):
        top, total, out = carry
        k, v = block_of
        scores = (q / 4.0) @ k.T
        new = jnp.maximum(top, scores.max(-1))
        shrink = jnp.exp(top - new)
        p = jnp.exp(scores - new[:, None])
        share = p.sum(-1).astype(jnp.bfloat16)
        total = total * shrink.astype(jnp.bfloat16) + share  # fault
        out = out * shrink[:, None] + p @ v
        return (new, total, out), None

    rows = q.shape[0]
    start = (jnp.full(rows, -1e9), jnp.zeros(rows, jnp.bfloat16), jnp.zeros_like(q))
    (_, total, out), _ = jax.lax.scan(step, start, (keys, values))
    return out / total.astype(jnp.float32)[:, None]


def online_healthy(q, keys, values):
    def step(carry, block_of):
        top, total, out = carry
        k, v = block_of
        scores = (q / 4.0) @ k.T
        new = jnp.maximum(top, scores.max(-1))
        shrink = jnp.exp(top - new)
        p = jnp.exp(scores - new[:, None])
        total = total * shrink + p.sum(-1)
        out = out * shrink[:, None] + p @ v
        return (new, total, out), None

    rows = q.shape[0]
    start = (jnp.full(rows, -1e9), jnp.zeros(rows), jnp.zeros_like(q))
    (_, total, out), _ = jax.lax.scan(step, start, (keys, values))
    return out / total[:, None]


def online_arguments():
    q = normal(30, 4, 16, scale=0.05)
    q[:, 0] = 4.0
    keys = normal(31, 200, 4, 16, scale=0.05)
    keys[:, :, 0] = 1.0
    keys[100:, :, 0] = -0.6
    values = normal(32, 200, 4, 16, shift=1.0)
    return q, keys, values


def positions_faulty(params, x, start):
    """Rotary embedding of a chunk that continues a long prompt."""
    h = layer_norm(x)
    q, k, v = h @ params["q"], h @ params["k"], h @ params["v"]
    half = q.shape[-1] // 2
    frequency = 10000.0 ** (-jnp.arange(half) / half)
    t = (start + jnp.arange(x.shape[0])).astype(jnp.bfloat16)  # fault
    angle = t.astype(jnp.float32)[:, None] * frequency
    sin, cos = jnp.sin(angle), jnp.cos(angle)

    def rotate(u):
        a, b = u[:, :half], u[:, half:]
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    probs = jax.nn.softmax(rotate(q) @ rotate(k).T / 4.0)
    return x + probs @ v @ params["o"]


def positions_healthy(params, x, start):
    h = layer_norm(x)
    q, k, v = h @ params["q"], h @ params["k"], h @ params["v"]
    half = q.shape[-1] // 2
    frequency = 10000.0 ** (-jnp.arange(half) / half)
    t = (start + jnp.arange(x.shape[0])).astype(jnp.float32)
    angle = t[:, None] * frequency
    sin, cos = jnp.sin(angle), jnp.cos(angle)

    def rotate(u):
        a, b = u[:, :half], u[:, half:]
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    probs = jax.nn.softmax(rotate(q) @ rotate(k).T / 4.0)
    return x + probs @ v @ params["o"]


def frequencies_faulty(params, x, cached, where):
    """One decoded token against cached keys; the model was made `.to(bfloat16)`."""
    half = x.shape[-1] // 2
    exponent = jnp.arange(half) / half
    frequency = (500000.0**-exponent).astype(jnp.bfloat16)  # fault
    frequency = frequency.astype(jnp.float32)

    def rotate(u, t):
        sin, cos = jnp.sin(t[:, None] * frequency), jnp.cos(t[:, None] * frequency)
        a, b = u[:, :half], u[:, half:]
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    q = rotate(x @ params["q"], where[-1:])
    k = rotate(cached @ params["k"], where)
    scores = (q / half**0.5) @ k.T
    read = jax.nn.softmax(scores) @ (cached @ params["v"])
    return scores, read @ params["o"]


def frequencies_healthy(params, x, cached, where):
    half = x.shape[-1] // 2
    exponent = jnp.arange(half) / half
    frequency = 500000.0**-exponent

    def rotate(u, t):
        sin, cos = jnp.sin(t[:, None] * frequency), jnp.cos(t[:, None] * frequency)
        a, b = u[:, :half], u[:, half:]
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    q = rotate(x @ params["q"], where[-1:])
    k = rotate(cached @ params["k"], where)
    scores = (q / half**0.5) @ k.T
    read = jax.nn.softmax(scores) @ (cached @ params["v"])
    return scores, read @ params["o"]


FAULTS = (
    Fault(
        name="memory-scores-exceed-fp16",
        kinds=("overflow",),
        faulty=retrieval_faulty,
        healthy=retrieval_healthy,
        arguments=retrieval_arguments,
        policy="fp16",
        source="NaN reports of FP16 attention that scales after q @ k, not q before",
    ),
    Fault(
        name="mask-of-minus-1e9-in-half",
        kinds=("overflow", "non-finite"),
        faulty=penalty_faulty,
        healthy=penalty_healthy,
        arguments=lambda: (
            block_params(14, 64),
            normal(15, 16, 64),
            np.tril(np.ones((16, 16), np.float32)),
            np.float32(-1e9),
        ),
        policy="fp16",
        source="transformers and ocannl issues: (1 - mask) * -1e9 in FP16 is 0 * -Inf",
    ),
    Fault(
        name="two-mask-planes-summed",
        kinds=("overflow", "non-finite"),
        faulty=planes_faulty,
        healthy=planes_healthy,
        arguments=planes_arguments,
        policy="bf16",
        source="NeMo Automodel: finfo.min of causal and padding masks added up in BF16",
    ),
    Fault(
        name="flash-denominator-in-bf16",
        kinds=("stagnation", "absorption"),
        faulty=online_faulty,
        healthy=online_healthy,
        arguments=online_arguments,
        policy="bf16",
        source="hand-written flash attention kernels that keep the row sum in BF16",
    ),
    Fault(
        name="rope-positions-in-bf16",
        kinds=("integer", "coarse"),
        faulty=positions_faulty,
        healthy=positions_healthy,
        arguments=lambda: (block_params(33, 32), normal(34, 32, 32), np.int32(15950)),
        policy="bf16",
        source="Baichuan 2 report and candle's RoPE table: positions collide in BF16",
    ),
    Fault(
        name="rope-frequencies-as-bf16-buffer",
        kinds=("coarse",),
        faulty=frequencies_faulty,
        healthy=frequencies_healthy,
        arguments=lambda: (
            block_params(35, 32),
            normal(36, 1, 32),
            normal(37, 32, 32),
            np.linspace(0, 7000, 32).round().astype(np.float32),
        ),
        policy="bf16",
        source="tt-metal and Modalities: inv_freq as BF16 buffer, phase grows with t",
    ),
)
