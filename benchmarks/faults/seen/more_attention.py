"""Attention: scores, masks, positions, normalizers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.common import (
    block,
    block_params,
    feed_forward,
    integers,
    join_heads,
    layer_norm,
    normal,
    split_heads,
)


def scores_scaled_late(p, x):
    """FP16 queries and keys whose scores are divided by the width after the product."""
    h = layer_norm(x, p["g1"], p["b1"])
    q = split_heads((h @ p["q"]).astype(jnp.float16), 2)
    k = split_heads((h @ p["k"]).astype(jnp.float16), 2)
    v = split_heads(h @ p["v"], 2)
    scores = jnp.einsum("htd,hsd->hts", q, k)  # fault
    scores = scores.astype(jnp.float32) / q.shape[-1]
    weights = jax.nn.softmax(scores, axis=-1)
    mixed = join_heads(jnp.einsum("hts,hsd->htd", weights, v))
    x = x + mixed @ p["o"]
    return x + feed_forward(p, x)


def scores_scaled_early(p, x):
    h = layer_norm(x, p["g1"], p["b1"])
    q = split_heads((h @ p["q"]).astype(jnp.float16), 2)
    k = split_heads((h @ p["k"]).astype(jnp.float16), 2)
    v = split_heads(h @ p["v"], 2)
    scores = jnp.einsum("htd,hsd->hts", q / q.shape[-1], k)
    scores = scores.astype(jnp.float32)
    weights = jax.nn.softmax(scores, axis=-1)
    mixed = join_heads(jnp.einsum("hts,hsd->htd", weights, v))
    x = x + mixed @ p["o"]
    return x + feed_forward(p, x)


def scores_arguments():
    p = block_params(200, 64, 96)
    p["q"], p["k"] = p["q"] * 42, p["k"] * 42
    p["k"] = 0.4 * p["k"] + 0.8 * p["q"]
    return p, normal(201, 24, 64)


def empty_sequence_softmax(p, x, lengths):
    """Pooling by attention over sentences; one of the batch is empty."""
    keep = jnp.arange(x.shape[1]) < lengths[:, None]
    keys = jnp.tanh(x @ p["key"])
    scores = jnp.einsum("btd,d->bt", keys, p["query"])
    scores = jnp.where(keep, scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1)  # fault
    pooled = jnp.einsum("bt,btd->bd", weights, x)
    logits = pooled @ p["head"]
    return logits, jnp.mean(jax.nn.logsumexp(logits, axis=-1))


def empty_sequence_guarded(p, x, lengths):
    keep = jnp.arange(x.shape[1]) < lengths[:, None]
    keys = jnp.tanh(x @ p["key"])
    scores = jnp.einsum("btd,d->bt", keys, p["query"])
    scores = jnp.where(keep, scores, -1e9)
    weights = jnp.where(keep, jax.nn.softmax(scores, axis=-1), 0.0)
    pooled = jnp.einsum("bt,btd->bd", weights, x)
    logits = pooled @ p["head"]
    return logits, jnp.mean(jax.nn.logsumexp(logits, axis=-1))


def empty_sequence_arguments():
    p = {
        "key": normal(210, 16, 16, scale=0.3),
        "query": normal(211, 16),
        "head": normal(212, 16, 5, scale=0.3),
    }
    return p, normal(213, 6, 10, 16), np.array([10, 4, 0, 7, 1, 9], np.int32)


def _rotate(x, angles):
    a, b = jnp.split(x, 2, axis=-1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def rotary_bf16_positions(p, x, start):
    """A window late in a long text; its positions are a BF16 range."""
    h = layer_norm(x, p["g1"], p["b1"])
    q, k, v = h @ p["q"], h @ p["k"], h @ p["v"]
    rates = 10000.0 ** (-jnp.arange(q.shape[-1] // 2) / (q.shape[-1] // 2))
    positions = (start + jnp.arange(x.shape[0])).astype(jnp.bfloat16)  # fault
    angles = positions.astype(jnp.float32)[:, None] * rates
    q, k = _rotate(q, angles), _rotate(k, angles)
    scores = (q * q.shape[-1] ** -0.5) @ k.T
    mask = jnp.tril(jnp.ones(scores.shape, bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    return x + (weights @ v) @ p["o"]


def rotary_fp32_positions(p, x, start):
    h = layer_norm(x, p["g1"], p["b1"])
    q, k, v = h @ p["q"], h @ p["k"], h @ p["v"]
    rates = 10000.0 ** (-jnp.arange(q.shape[-1] // 2) / (q.shape[-1] // 2))
    positions = (start + jnp.arange(x.shape[0])).astype(jnp.float32)
    angles = positions[:, None] * rates
    q, k = _rotate(q, angles), _rotate(k, angles)
    scores = (q * q.shape[-1] ** -0.5) @ k.T
    mask = jnp.tril(jnp.ones(scores.shape, bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
    return x + (weights @ v) @ p["o"]


def rotary_arguments():
    p = block_params(220, 16, 16)
    p["k"] = p["q"] * 2.0
    return p, normal(221, 80, 16), np.int32(1_203)


def online_softmax_bf16_sum(q, keys, values):
    """Decoding over a cache, key by key; a sink takes the first weight."""

    def visit(state, kv):
        top, total, acc = state
        key, value = kv
        score = jnp.sum(q * key)
        new = jnp.maximum(top, score)
        shrink, weight = jnp.exp(top - new), jnp.exp(score - new)
        scaled = total * shrink.astype(jnp.bfloat16)
        total = scaled + weight.astype(jnp.bfloat16)  # fault
        return (new, total, acc * shrink + weight * value), score

    start = (jnp.float32(-1e30), jnp.bfloat16(0), jnp.zeros(values.shape[1]))
    (top, total, acc), scores = jax.lax.scan(visit, start, (keys, values))
    total = total.astype(jnp.float32)
    return acc / total, jnp.exp(scores - top) / total


def online_softmax_fp32_sum(q, keys, values):
    def visit(state, kv):
        top, total, acc = state
        key, value = kv
        score = jnp.sum(q * key)
        new = jnp.maximum(top, score)
        shrink, weight = jnp.exp(top - new), jnp.exp(score - new)
        total = total * shrink + weight
        return (new, total, acc * shrink + weight * value), score

    start = (jnp.float32(-1e30), jnp.float32(0), jnp.zeros(values.shape[1]))
    (top, total, acc), scores = jax.lax.scan(visit, start, (keys, values))
    return acc / total, jnp.exp(scores - top) / total


def online_softmax_arguments():
    q = np.full(16, 0.5, np.float32)
    keys = normal(230, 200, 16, scale=0.1)
    keys[0] += 0.8
    return q, keys, normal(231, 200, 16, shift=1.0)


def performer_unstabilized(p, x):
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
    phi_k = phi_k.astype(jnp.float32)
    numerator = phi_q @ (phi_k.T @ v)
    return numerator / (phi_q @ jnp.sum(phi_k, axis=0)[:, None])


def performer_stabilized(p, x):
    q = (x @ p["q"]).astype(jnp.float16)
    k = (x @ p["k"]).astype(jnp.float16)
    v = x @ p["v"]
    norm_q = jnp.sum(jnp.square(q.astype(jnp.float32)), -1, keepdims=True) / 2
    q_exponent = q.astype(jnp.float32) @ p["features"] - norm_q
    norm_k = jnp.sum(jnp.square(k.astype(jnp.float32)), -1, keepdims=True) / 2
    k_exponent = k.astype(jnp.float32) @ p["features"] - norm_k
    phi_q = jnp.exp(q_exponent - jnp.max(q_exponent, -1, keepdims=True))
    phi_k = jnp.exp(k_exponent - jnp.max(k_exponent))
    numerator = phi_q @ (phi_k.T @ v)
    return numerator / (phi_q @ jnp.sum(phi_k, axis=0)[:, None])


def performer_arguments():
    p = {
        "q": normal(240, 24, 16, scale=0.15),
        "k": normal(241, 24, 16, scale=0.15),
        "v": normal(242, 24, 16, scale=0.2),
        "features": np.abs(normal(243, 16, 48, scale=4.0)),
    }
    return p, np.abs(normal(244, 40, 24))


def mask_of_wider_type(p, x, start):
    """Left padding: the lowest FP32 number masks scores that are FP16."""
    h = layer_norm(x, p["g1"], p["b1"])
    q, k, v = h @ p["q"], h @ p["k"], h @ p["v"]
    scores = ((q * q.shape[-1] ** -0.5) @ k.T).astype(jnp.float16)
    t = jnp.arange(x.shape[0])
    seen = (t[None] <= t[:, None]) & (t >= start)[None]
    lowest = jnp.where(seen, 0.0, jnp.finfo(jnp.float32).min)
    bias = lowest.astype(jnp.float16)  # fault
    weights = jax.nn.softmax((scores + bias).astype(jnp.float32), axis=-1)
    x = x + (weights @ v) @ p["o"]
    return block(p, x)[-4:]


def mask_of_own_type(p, x, start):
    h = layer_norm(x, p["g1"], p["b1"])
    q, k, v = h @ p["q"], h @ p["k"], h @ p["v"]
    scores = ((q * q.shape[-1] ** -0.5) @ k.T).astype(jnp.float16)
    t = jnp.arange(x.shape[0])
    seen = (t[None] <= t[:, None]) & (t >= start)[None]
    scores = jnp.where(seen, scores, jnp.finfo(jnp.float16).min)
    weights = jax.nn.softmax(scores.astype(jnp.float32), axis=-1)
    x = x + (weights @ v) @ p["o"]
    return block(p, x)[-4:]


def masks_arguments():
    p = block_params(250, 32, 48)
    return p, normal(251, 20, 32), np.int32(6)


def boosted_candidates(params, context, allowed):
    """Constrained decoding: allowed tokens get a bonus, logits are FP16."""
    hidden = jnp.tanh(context @ params["w"])
    logits = (hidden @ params["embed"].T).astype(jnp.float16)
    bonus = jnp.where(allowed, 2.0e4, 0.0).astype(jnp.float16)
    boosted = logits + bonus  # fault
    scores = jax.nn.log_softmax(boosted.astype(jnp.float32), axis=-1)
    best = jnp.argmax(boosted, axis=-1)
    return best, jnp.take_along_axis(scores, best[:, None], axis=-1)


def masked_candidates(params, context, allowed):
    hidden = jnp.tanh(context @ params["w"])
    logits = (hidden @ params["embed"].T).astype(jnp.float16)
    boosted = jnp.where(allowed, logits.astype(jnp.float32), -1e9)
    scores = jax.nn.log_softmax(boosted, axis=-1)
    best = jnp.argmax(boosted, axis=-1)
    return best, jnp.take_along_axis(scores, best[:, None], axis=-1)


def candidates_arguments():
    params = {"w": normal(260, 24, 32, scale=0.3), "embed": normal(261, 96, 32)}
    allowed = integers(262, 0, 4, 32, 96) == 0
    return params, normal(263, 32, 24), allowed


FAULTS = (
    Fault(
        name="half-scores-before-scaling",
        kinds=("overflow",),
        faulty=scores_scaled_late,
        healthy=scores_scaled_early,
        arguments=scores_arguments,
        policy="bf16",
        source="half-precision attention issues: divide queries before the product",
    ),
    Fault(
        name="softmax-of-empty-sequence",
        kinds=("non-finite",),
        faulty=empty_sequence_softmax,
        healthy=empty_sequence_guarded,
        arguments=empty_sequence_arguments,
        policy="bf16",
        source="attention issues: NaN when a padding mask hides every key",
    ),
    Fault(
        name="rotary-positions-in-bf16",
        kinds=("integer", "coarse"),
        faulty=rotary_bf16_positions,
        healthy=rotary_fp32_positions,
        arguments=rotary_arguments,
        policy="bf16",
        source="rotary embedding issues: positions above 256 collide in BF16",
    ),
    Fault(
        name="online-softmax-bf16-denominator",
        kinds=("absorption", "stagnation"),
        faulty=online_softmax_bf16_sum,
        healthy=online_softmax_fp32_sum,
        arguments=online_softmax_arguments,
        policy="bf16",
        source="streaming attention kernels: the running sum has to stay FP32",
    ),
    Fault(
        name="performer-features-without-stabilizer",
        kinds=("overflow",),
        faulty=performer_unstabilized,
        healthy=performer_stabilized,
        arguments=performer_arguments,
        policy="bf16",
        source=(
            "random-feature attention in half precision without subtracting the maximum"
        ),
    ),
    Fault(
        name="fp32-mask-cast-to-half",
        kinds=("overflow", "non-finite"),
        faulty=mask_of_wider_type,
        healthy=mask_of_own_type,
        arguments=masks_arguments,
        policy="bf16",
        source=(
            "language-model issues: finfo(float32).min is -inf in FP16, left-padded "
            "rows NaN"
        ),
    ),
    Fault(
        name="constrained-decoding-bonus",
        kinds=("absorption", "coarse", "uniform"),
        faulty=boosted_candidates,
        healthy=masked_candidates,
        arguments=candidates_arguments,
        policy="fp16",
        source=(
            "generation issues: a large additive bonus erases the logits in half types"
        ),
    ),
)
