"""Attention: scores, masks, positions, running sums."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults import common
from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import (
    block,
    block_params,
    feed_forward,
    integers,
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
    p = common.block_params(220, 16, 16)
    p["k"] = p["q"] * 2.0
    return p, "80x16 @221; i32 1203"


@fault("integer", "coarse")
@source("rotary embedding issues: positions above 256 collide in BF16")
@inputs(by=rotary_arguments)
def rotary_positions_in_bf16(p, x, start):
    """A window late in a long text; its positions are a BF16 range."""
    h = common.layer_norm(x, p["g1"], p["b1"])
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


@fault("absorption", "stagnation")
@source("streaming attention kernels: the running sum has to stay FP32")
@inputs("16 =0.5; 200x16 *0.1 @230 [0]+=0.8; 200x16 +1 @231")
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
