"""Faults in attention: scores, masks, positions, running sums."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import (
    block,
    block_params,
    feed_forward,
    layer_norm,
    normal,
)


def retrieval_arguments():
    keys = normal(10, 32, 64, scale=36.0)
    params = {"body": block_params(11, 64), "targets": keys[::-1][:16].copy()}
    return params, keys, "32x64 @12; 16x64 @13"


@fault("overflow", policy="fp16")
@source("NaN reports of FP16 attention that scales after q @ k, not q before")
@inputs(by=retrieval_arguments)
def memory_scores_exceed_fp16(params, keys, values, x):
    """A memory that is read by hard attention, in FP16."""
    x = block(params["body"], x)
    q = layer_norm(x) + params["targets"]  # -
    # + q = (layer_norm(x) + params["targets"]) / keys.shape[-1] ** 0.5
    q16, k16 = q.astype(jnp.float16), keys.astype(jnp.float16)
    scores = q16 @ k16.T  # here
    scores = scores.astype(jnp.float32) / keys.shape[-1] ** 0.5  # -
    read = jax.nn.softmax(scores) @ values  # -
    # + read = jax.nn.softmax(scores.astype(jnp.float32)) @ values
    return x + feed_forward(params["body"], layer_norm(read))


@fault("overflow", "non-finite", policy="fp16")
@source("transformers and ocannl issues: (1 - mask) * -1e9 in FP16 is 0 * -Inf")
@inputs(
    "block 64 @14; 16x64 @15",
    lambda: np.tril(np.ones((16, 16), np.float32)),
    "f32 -1e+09",
)
def mask_of_minus_1e9_in_half(params, x, keep, penalty):
    """A BERT layer in half precision, with the usual additive mask."""
    h = layer_norm(x).astype(jnp.float16)
    q, k, v = (h @ params[n].astype(jnp.float16) for n in "qkv")
    scores = (q / 8) @ k.T  # -
    # + scores = ((q / 8) @ k.T).astype(jnp.float32)
    # + scores = jnp.where(keep > 0, scores, penalty)
    bias = (1 - keep.astype(jnp.float16)) * penalty.astype(jnp.float16)  # fault
    probs = jax.nn.softmax((scores + bias).astype(jnp.float32)).astype(jnp.float16)  # -
    # + probs = jax.nn.softmax(scores).astype(jnp.float16)
    x = x + (probs @ v).astype(jnp.float32) @ params["o"]
    return x + feed_forward(params, layer_norm(x))


def planes_arguments():
    segments = np.ones((3, 16), np.int32)
    segments[:, 8:] = 2
    segments[1, 12:] = 0
    segments[2] = 0
    return "block 64 @20; 3x16x64 @21", segments, segments == 0, "f32 1 1 0"


@fault("overflow", "non-finite")
@source("NeMo Automodel: finfo.min of causal and padding masks added up in BF16")
@inputs(by=planes_arguments)
def two_mask_planes_summed(params, x, segments, padded, weights):
    """Packed sequences: two additive masks; the last row of the batch is a filler."""
    lowest = jnp.finfo(jnp.bfloat16).min

    def one(x, segments, padded):
        h = layer_norm(x).astype(jnp.bfloat16)
        q, k, v = (h @ params[n].astype(jnp.bfloat16) for n in "qkv")
        same = segments[:, None] == segments[None, :]
        other = ~same | (segments[:, None] == 0)
        first = jnp.where(other, lowest, 0).astype(jnp.bfloat16)  # -
        second = jnp.where(padded[None, :], lowest, 0).astype(jnp.bfloat16)  # -
        bias = first + second  # fault
        scores = ((q / 8) @ k.T + bias).astype(jnp.float32)  # -
        # + hidden = other | padded[None, :]
        # + scores = jnp.where(hidden, lowest, (q / 8) @ k.T).astype(jnp.float32)
        x = x + (jax.nn.softmax(scores).astype(jnp.bfloat16) @ v).astype(x.dtype)
        return jnp.mean(feed_forward(params, layer_norm(x)) ** 2)

    losses = jax.vmap(one)(x, segments, padded)
    return jnp.sum(losses * weights) / jnp.sum(weights)


def online_arguments():
    q = normal(30, 4, 16, scale=0.05)
    q[:, 0] = 4.0
    keys = normal(31, 200, 4, 16, scale=0.05)
    keys[:, :, 0] = 1.0
    keys[100:, :, 0] = -0.6
    return q, keys, "200x4x16 +1 @32"


@fault("stagnation", "absorption")
@source("hand-written flash attention kernels that keep the row sum in BF16")
@inputs(by=online_arguments)
def flash_denominator_in_bf16(q, keys, values):
    """Attention over blocks of keys with a running maximum and sum."""

    def step(carry, block_of):
        top, total, out = carry
        k, v = block_of
        scores = (q / 4.0) @ k.T
        new = jnp.maximum(top, scores.max(-1))
        shrink = jnp.exp(top - new)
        p = jnp.exp(scores - new[:, None])
        share = p.sum(-1).astype(jnp.bfloat16)  # -
        total = total * shrink.astype(jnp.bfloat16) + share  # fault
        # + total = total * shrink + p.sum(-1)
        out = out * shrink[:, None] + p @ v
        return (new, total, out), None

    rows = q.shape[0]
    start = (
        jnp.full(rows, -1e9),
        jnp.zeros(rows, jnp.bfloat16),
        jnp.zeros_like(q),
    )  # -
    # + start = (jnp.full(rows, -1e9), jnp.zeros(rows), jnp.zeros_like(q))
    (_, total, out), _ = jax.lax.scan(step, start, (keys, values))
    return out / total.astype(jnp.float32)[:, None]  # -
    # + return out / total[:, None]


@fault("integer", "coarse")
@source("Baichuan 2 report and candle's RoPE table: positions collide in BF16")
@inputs("block 32 @33; 32x32 @34; i32 15950")
def rope_positions_in_bf16(params, x, start):
    """Rotary embedding of a chunk that continues a long prompt."""
    h = layer_norm(x)
    q, k, v = h @ params["q"], h @ params["k"], h @ params["v"]
    half = q.shape[-1] // 2
    frequency = 10000.0 ** (-jnp.arange(half) / half)
    t = (start + jnp.arange(x.shape[0])).astype(jnp.bfloat16)  # fault
    # + t = (start + jnp.arange(x.shape[0])).astype(jnp.float32)
    angle = t.astype(jnp.float32)[:, None] * frequency  # -
    # + angle = t[:, None] * frequency
    sin, cos = jnp.sin(angle), jnp.cos(angle)

    def rotate(u):
        a, b = u[:, :half], u[:, half:]
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    probs = jax.nn.softmax(rotate(q) @ rotate(k).T / 4.0)
    return x + probs @ v @ params["o"]


@fault("coarse")
@source("tt-metal and Modalities: inv_freq as BF16 buffer, phase grows with t")
@inputs(
    "block 32 @35; 1x32 @36; 32x32 @37",
    lambda: np.linspace(0, 7000, 32).round().astype(np.float32),
)
def rope_frequencies_as_bf16_buffer(params, x, cached, where):
    """One decoded token against cached keys; the model was made `.to(bfloat16)`."""
    half = x.shape[-1] // 2
    exponent = jnp.arange(half) / half
    frequency = (500000.0**-exponent).astype(jnp.bfloat16)  # fault
    # + frequency = 500000.0**-exponent
    frequency = frequency.astype(jnp.float32)  # -

    def rotate(u, t):
        sin, cos = jnp.sin(t[:, None] * frequency), jnp.cos(t[:, None] * frequency)
        a, b = u[:, :half], u[:, half:]
        return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

    q = rotate(x @ params["q"], where[-1:])
    k = rotate(cached @ params["k"], where)
    scores = (q / half**0.5) @ k.T
    read = jax.nn.softmax(scores) @ (cached @ params["v"])
    return scores, read @ params["o"]
