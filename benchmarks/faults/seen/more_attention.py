"""Attention: scores, masks, positions, normalizers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import (
    block,
    block_params,
    feed_forward,
    join_heads,
    layer_norm,
    split_heads,
)
from benchmarks.faults.parts import integers, normal


def scores_arguments():
    p = block_params(200, 64, 96)
    p["q"], p["k"] = p["q"] * 42, p["k"] * 42
    p["k"] = 0.4 * p["k"] + 0.8 * p["q"]
    return p, "24x64 @201"


@fault("overflow")
@source("half-precision attention issues: divide queries before the product")
@inputs(by=scores_arguments)
def half_scores_before_scaling(p, x):
    """FP16 queries and keys whose scores are divided by the width after the product."""
    h = layer_norm(x, p["g1"], p["b1"])
    q = split_heads((h @ p["q"]).astype(jnp.float16), 2)
    k = split_heads((h @ p["k"]).astype(jnp.float16), 2)
    v = split_heads(h @ p["v"], 2)
    scores = jnp.einsum("htd,hsd->hts", q, k)  # fault
    # + scores = jnp.einsum("htd,hsd->hts", q / q.shape[-1], k)
    # + scores = scores.astype(jnp.float32)
    scores = scores.astype(jnp.float32) / q.shape[-1]  # -
    weights = jax.nn.softmax(scores, axis=-1)
    mixed = join_heads(jnp.einsum("hts,hsd->htd", weights, v))
    x = x + mixed @ p["o"]
    return x + feed_forward(p, x)


@fault("non-finite")
@source("attention issues: NaN when a padding mask hides every key")
@inputs(
    "key: 16x16 *0.3 @210, query: 16, head: 16x5 *0.3; 6x10x16 @213; i32 10 4 0 7 1 9"
)
def softmax_of_empty_sequence(p, x, lengths):
    """Pooling by attention over sentences; one of the batch is empty."""
    keep = jnp.arange(x.shape[1]) < lengths[:, None]
    keys = jnp.tanh(x @ p["key"])
    scores = jnp.einsum("btd,d->bt", keys, p["query"])
    scores = jnp.where(keep, scores, -jnp.inf)  # -
    # + scores = jnp.where(keep, scores, -1e9)
    weights = jax.nn.softmax(scores, axis=-1)  # fault
    # + weights = jnp.where(keep, jax.nn.softmax(scores, axis=-1), 0.0)
    pooled = jnp.einsum("bt,btd->bd", weights, x)
    logits = pooled @ p["head"]
    return logits, jnp.mean(jax.nn.logsumexp(logits, axis=-1))


def _rotate(x, angles):
    a, b = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def rotary_arguments():
    p = block_params(220, 16, 16)
    p["k"] = p["q"] * 2.0
    return p, "80x16 @221; i32 1203"


@fault("integer", "coarse")
@source("rotary embedding issues: positions above 256 collide in BF16")
@inputs(by=rotary_arguments)
def rotary_positions_in_bf16(p, x, start):
    """A window late in a long text; its positions are a BF16 range."""
    h = layer_norm(x, p["g1"], p["b1"])
    q, k, v = h @ p["q"], h @ p["k"], h @ p["v"]
    rates = 10000.0 ** (-jnp.arange(q.shape[-1] // 2) / (q.shape[-1] // 2))
    positions = (start + jnp.arange(x.shape[0])).astype(jnp.bfloat16)  # fault
    # + positions = (start + jnp.arange(x.shape[0])).astype(jnp.float32)
    angles = positions.astype(jnp.float32)[:, None] * rates  # -
    # + angles = positions[:, None] * rates
    q, k = _rotate(q, angles), _rotate(k, angles)
    scores = (q * q.shape[-1] ** -0.5) @ k.T
    mask = jnp.tril(jnp.ones(scores.shape, bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    return x + (weights @ v) @ p["o"]


def online_softmax_arguments():
    keys = normal(230, 200, 16, scale=0.1)
    keys[0] += 0.8
    return "16 =0.5", keys, "200x16 +1 @231"


@fault("absorption", "stagnation")
@source("streaming attention kernels: the running sum has to stay FP32")
@inputs(by=online_softmax_arguments)
def online_softmax_bf16_denominator(q, keys, values):
    """Decoding over a cache, key by key; a sink takes the first weight."""

    def visit(state, kv):
        top, total, acc = state
        key, value = kv
        score = jnp.sum(q * key)
        new = jnp.maximum(top, score)
        shrink, weight = jnp.exp(top - new), jnp.exp(score - new)
        scaled = total * shrink.astype(jnp.bfloat16)  # -
        total = scaled + weight.astype(jnp.bfloat16)  # fault
        # + total = total * shrink + weight
        return (new, total, acc * shrink + weight * value), score

    start = (jnp.float32(-1e30), jnp.bfloat16(0), jnp.zeros(values.shape[1]))  # -
    # + start = (jnp.float32(-1e30), jnp.float32(0), jnp.zeros(values.shape[1]))
    (top, total, acc), scores = jax.lax.scan(visit, start, (keys, values))
    total = total.astype(jnp.float32)  # -
    return acc / total, jnp.exp(scores - top) / total


@fault("overflow")
@source("random-feature attention in half precision without subtracting the maximum")
@inputs(
    {
        "q": "24x16 *0.15 @240",
        "k": "24x16 *0.15 @241",
        "v": "24x16 *0.2 @242",
        "features": lambda: np.abs(normal(243, 16, 48, scale=4.0)),
    },
    lambda: np.abs(normal(244, 40, 24)),
)
def performer_features_without_stabilizer(p, x):
    """Linear attention with positive random features, in FP16."""
    q = (x @ p["q"]).astype(jnp.float16)
    k = (x @ p["k"]).astype(jnp.float16)
    v = x @ p["v"]
    norm_q = jnp.sum(jnp.square(q.astype(jnp.float32)), -1, keepdims=True) / 2
    q_exponent = q.astype(jnp.float32) @ p["features"] - norm_q
    norm_k = jnp.sum(jnp.square(k.astype(jnp.float32)), -1, keepdims=True) / 2
    k_exponent = k.astype(jnp.float32) @ p["features"] - norm_k
    phi_q = jnp.exp(q_exponent - jnp.max(q_exponent, -1, keepdims=True))
    phi_k = jnp.exp(k_exponent.astype(jnp.float16))  # fault
    # + phi_k = jnp.exp(k_exponent - jnp.max(k_exponent))
    phi_k = phi_k.astype(jnp.float32)  # -
    numerator = phi_q @ (phi_k.T @ v)
    return numerator / (phi_q @ jnp.sum(phi_k, axis=0)[:, None])


@fault("overflow", "non-finite")
@source(
    "language-model issues: finfo(float32).min is -inf in FP16, left-padded rows NaN"
)
@inputs("block 32x48 @250; 20x32 @251; i32 6")
def fp32_mask_cast_to_half(p, x, start):
    """Left padding: the lowest FP32 number masks scores that are FP16."""
    h = layer_norm(x, p["g1"], p["b1"])
    q, k, v = h @ p["q"], h @ p["k"], h @ p["v"]
    scores = ((q * q.shape[-1] ** -0.5) @ k.T).astype(jnp.float16)
    t = jnp.arange(x.shape[0])
    seen = (t[None] <= t[:, None]) & (t >= start)[None]
    lowest = jnp.where(seen, 0.0, jnp.finfo(jnp.float32).min)  # -
    bias = lowest.astype(jnp.float16)  # fault
    weights = jax.nn.softmax((scores + bias).astype(jnp.float32), axis=-1)  # -
    # + scores = jnp.where(seen, scores, jnp.finfo(jnp.float16).min)
    # + weights = jax.nn.softmax(scores.astype(jnp.float32), axis=-1)
    x = x + (weights @ v) @ p["o"]
    return block(p, x)[-4:]


@fault("absorption", "coarse", "uniform", policy="fp16")
@source("generation issues: a large additive bonus erases the logits in half types")
@inputs(
    "w: 24x32 *0.3 @260, embed: 96x32; 32x24 @263",
    lambda: integers(262, 4, 32, 96) == 0,
)
def constrained_decoding_bonus(params, context, allowed):
    """Constrained decoding: allowed tokens get a bonus, logits are FP16."""
    hidden = jnp.tanh(context @ params["w"])
    logits = (hidden @ params["embed"].T).astype(jnp.float16)
    bonus = jnp.where(allowed, 2.0e4, 0.0).astype(jnp.float16)  # -
    boosted = logits + bonus  # fault
    # + boosted = jnp.where(allowed, logits.astype(jnp.float32), -1e9)
    scores = jax.nn.log_softmax(boosted.astype(jnp.float32), axis=-1)  # -
    # + scores = jax.nn.log_softmax(boosted, axis=-1)
    best = jnp.argmax(boosted, axis=-1)
    return best, jnp.take_along_axis(scores, best[:, None], axis=-1)
