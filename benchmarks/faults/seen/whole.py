"""Faults of integers: unsigned differences, narrow types, keys and counts in floats."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import (
    block,
    block_params,
    convolution,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)
from benchmarks.faults.seen.serving import case


def staleness_faulty(params, now, written):
    """How old the entries of a cache are; some clocks run ahead."""
    age = now - written  # fault
    freshness = jnp.exp(-age.astype(jnp.float32) / 600.0)
    return freshness, freshness @ params


def staleness_healthy(params, now, written):
    age = now.astype(jnp.int32) - written.astype(jnp.int32)
    freshness = jnp.exp(-jnp.maximum(age, 0).astype(jnp.float32) / 600.0)
    return freshness, freshness @ params


def staleness_arguments():
    written = 90_000 + integers(6001, 900, 32).astype(np.uint32)
    return weight(6002, 32, 4), np.uint32(90_600), written


def window_faulty(params, x, places):
    """Attention within a window around unsigned positions."""
    distance = places[:, None] - places[None]  # fault
    near = distance < 4
    q, k, v = (x @ params[name] for name in "qkv")
    scores = jnp.where(near, q @ k.T / 4.0, -1e9)
    return jax.nn.softmax(scores) @ v @ params["o"]


def window_healthy(params, x, places):
    signed = places.astype(jnp.int32)
    near = jnp.abs(signed[:, None] - signed[None]) < 4
    q, k, v = (x @ params[name] for name in "qkv")
    scores = jnp.where(near, q @ k.T / 4.0, -1e9)
    return jax.nn.softmax(scores) @ v @ params["o"]


def vocabulary_faulty(params, tokens):
    """Token ids of a large vocabulary, stored in the files' 16 bits."""
    stored = tokens.astype(jnp.int16)  # fault
    x = params["embed"][stored.astype(jnp.int32)]
    return layer_norm(block(params["body"], x)) @ params["head"]


def vocabulary_healthy(params, tokens):
    stored = tokens.astype(jnp.uint16)
    x = params["embed"][stored.astype(jnp.int32)]
    return layer_norm(block(params["body"], x)) @ params["head"]


def vocabulary_arguments():
    params = {
        "embed": normal(6003, 50_000, 16),
        "body": block_params(6004, 16),
        "head": weight(6015, 16, 8),
    }
    return params, integers(6016, 16_000, 20) + np.int32(33_000)


def downmix_faulty(params, left, right):
    """Both channels of loud music in one."""
    mono = (left + right) // 2  # fault
    x = mono.astype(jnp.float32).reshape(-1, 32) / 32768.0
    return x, jnp.tanh(x @ params["in"]) @ params["out"]


def downmix_healthy(params, left, right):
    mono = (left.astype(jnp.int32) + right.astype(jnp.int32)) // 2
    x = mono.astype(jnp.float32).reshape(-1, 32) / 32768.0
    return x, jnp.tanh(x @ params["in"]) @ params["out"]


def downmix_arguments():
    common = uniform(6020, 256, low=-30_000.0, high=30_000.0)
    left, right = (
        np.round(np.clip(common + normal(s, 256, scale=500.0), -32768, 32767))
        for s in (6021, 6022)
    )
    params = {"in": weight(6023, 32, 16), "out": weight(6024, 16, 3)}
    return params, left.astype(np.int16), right.astype(np.int16)


def sparsity_faulty(params, codes):
    """How many codes of a quantized layer are large."""
    size = jnp.abs(codes)  # fault
    large = (size > 100).sum(0)
    x = size.astype(jnp.float32) * params["scale"]
    return large, x @ params["w"]


def sparsity_healthy(params, codes):
    size = jnp.abs(codes.astype(jnp.int32))
    large = (size > 100).sum(0)
    x = size.astype(jnp.float32) * params["scale"]
    return large, x @ params["w"]


def sparsity_arguments():
    codes = np.clip(integers(6030, 420, 24, 16) - 210, -128, 127).astype(np.int8)
    return {"scale": np.float32(0.01), "w": weight(6031, 16, 4)}, codes


def penalty_faulty(params, x, labels):
    """The negative log likelihood of classes, read by negated bytes."""
    logits = jnp.tanh(x @ params["in"]) @ params["out"]
    signs = (-labels).astype(jnp.float32)  # fault
    return jnp.mean(jax.nn.softplus(signs * logits[:, 0]))


def penalty_healthy(params, x, labels):
    logits = jnp.tanh(x @ params["in"]) @ params["out"]
    signs = -labels.astype(jnp.float32)
    return jnp.mean(jax.nn.softplus(signs * logits[:, 0]))


def routed_faulty(params, x, expert):
    """The slot of each token in its expert's queue, by a running sum of one-hots."""
    one_hot = jax.nn.one_hot(expert, 4, dtype=jnp.bfloat16)
    place = jnp.cumsum(one_hot, axis=0)  # fault
    slot = jnp.sum(place * one_hot, axis=-1).astype(jnp.int32) - 1
    queue = jnp.zeros((4, 1024, x.shape[1])).at[expert, slot].set(x)
    return slot, jnp.tanh(queue @ params).sum((1, 2))


def routed_healthy(params, x, expert):
    one_hot = jax.nn.one_hot(expert, 4, dtype=jnp.int32)
    place = jnp.cumsum(one_hot, axis=0)
    slot = jnp.sum(place * one_hot, axis=-1) - 1
    queue = jnp.zeros((4, 1024, x.shape[1])).at[expert, slot].set(x)
    return slot, jnp.tanh(queue @ params).sum((1, 2))


def routed_arguments():
    expert = np.where(uniform(6040, 1500) < 0.6, 1, integers(6041, 4, 1500))
    return weight(6042, 8, 8), normal(6043, 1500, 8), expert.astype(np.int32)


def hour_faulty(params, stamps):
    """The hour of the day of events since 1970."""
    hours = stamps / 3600  # fault
    angle = (hours % 24.0) * (2 * jnp.pi / 24.0)
    x = jnp.stack([jnp.sin(angle), jnp.cos(angle)], -1)
    return angle, jnp.tanh(x @ params)


def hour_healthy(params, stamps):
    hours = (stamps % 86_400).astype(jnp.float32) / 3600.0
    angle = hours * (2 * jnp.pi / 24.0)
    x = jnp.stack([jnp.sin(angle), jnp.cos(angle)], -1)
    return angle, jnp.tanh(x @ params)


def hour_arguments():
    stamps = 1_700_000_000 + np.sort(integers(6050, 864, 48)) * 100
    return weight(6051, 2, 8), stamps.astype(np.int32)


def percent_faulty(params, clicks, shown):
    """Rates of clicks in per mille, in whole numbers."""
    rate = clicks * 1000 // shown  # fault
    x = rate.astype(jnp.float32) / 1000.0
    return rate, jax.nn.sigmoid(x @ params)


def percent_healthy(params, clicks, shown):
    rate = jnp.floor(clicks.astype(jnp.float32) / shown * 1000.0).astype(jnp.int32)
    x = rate.astype(jnp.float32) / 1000.0
    return rate, jax.nn.sigmoid(x @ params)


def percent_arguments():
    shown = 20_000_000 + integers(6060, 60_000_000, 40)
    return weight(6061, 40, 3), (shown * uniform(6062, 40)).astype(np.int32), shown


def pyramid_faulty(params, levels, x):
    """Strides of the levels of a long pyramid of dilated convolutions."""
    stride = jnp.int16(2) ** levels  # fault
    reach = 1.0 / stride.astype(jnp.float32)
    return reach, jnp.tanh(x * reach) @ params


def pyramid_healthy(params, levels, x):
    reach = jnp.exp2(-levels.astype(jnp.float32))
    return reach, jnp.tanh(x * reach) @ params


def offsets_faulty(table, rows, columns):
    """A ragged batch in one buffer, read by row and column."""
    at = rows * jnp.uint8(24) + columns  # fault
    x = table[at.astype(jnp.int32)]
    return layer_norm(x).sum(-1), x * 2.0


def offsets_healthy(table, rows, columns):
    at = rows.astype(jnp.int32) * 24 + columns
    x = table[at]
    return layer_norm(x).sum(-1), x * 2.0


def pixels_faulty(kernel, image):
    """A standardized image back in bytes, negatives and all."""
    edges = convolution(image, kernel)
    stored = (edges * 255.0).astype(jnp.uint8)  # fault
    return stored.astype(jnp.float32) / 255.0


def pixels_healthy(kernel, image):
    edges = convolution(image, kernel)
    low, high = edges.min(), edges.max()
    share = (edges - low) / (high - low)
    stored = jnp.clip(share * 255.0, 0.0, 255.0).astype(jnp.uint8)
    return stored.astype(jnp.float32) / 255.0


def bytes_faulty(sizes, params):
    """The memory that layers take, in bytes."""
    total = jnp.sum(sizes)  # fault
    share = sizes.astype(jnp.float32) / total.astype(jnp.float32)
    return share, jnp.tanh(share @ params)


def bytes_healthy(sizes, params):
    large = sizes.astype(jnp.float32)
    share = large / jnp.sum(large)
    return share, jnp.tanh(share @ params)


FAULTS: tuple[Fault, ...] = (
    case(
        "cache-age-of-clocks-ahead",
        ("integer",),
        (staleness_faulty, staleness_healthy),
        staleness_arguments,
        "bf16",
        "unsigned time differences: an entry from the future is 136 years old",
    ),
    case(
        "window-of-unsigned-positions",
        ("integer",),
        (window_faulty, window_healthy),
        lambda: (
            {n: weight(6070 + i, 16, 16) for i, n in enumerate("qkvo")},
            normal(6075, 24, 16),
            np.arange(24, dtype=np.uint32),
        ),
        "bf16",
        "sliding windows: differences of unsigned positions are never negative",
    ),
    case(
        "vocabulary-in-signed-16-bits",
        ("integer",),
        (vocabulary_faulty, vocabulary_healthy),
        vocabulary_arguments,
        "bf16",
        "nanoGPT-like token files: uint16 read as int16",
    ),
    case(
        "stereo-sum-in-int16",
        ("integer",),
        (downmix_faulty, downmix_healthy),
        downmix_arguments,
        "fp32",
        "audioop and NumPy: the mean of two int16 channels",
    ),
    case(
        "magnitude-of-minus-128",
        ("integer",),
        (sparsity_faulty, sparsity_healthy),
        sparsity_arguments,
        "fp32",
        "abs of the most negative number of a two's complement type",
    ),
    case(
        "negated-bytes-as-signs",
        ("integer",),
        (penalty_faulty, penalty_healthy),
        lambda: (
            {"in": weight(6080, 8, 8), "out": weight(6081, 8, 1)},
            normal(6082, 20, 8),
            integers(6083, 2, 20).astype(np.uint8),
        ),
        "bf16",
        "NumPy: -np.uint8(1) is 255",
    ),
    case(
        "expert-slots-by-bf16-cumsum",
        ("integer", "coarse", "stagnation"),
        (routed_faulty, routed_healthy),
        routed_arguments,
        "bf16",
        "mixture-of-experts dispatch: cumsum of one-hots in the model's dtype",
    ),
    case(
        "hour-of-day-in-fp32",
        ("integer", "coarse", "cancellation"),
        (hour_faulty, hour_healthy),
        hour_arguments,
        "fp32",
        "feature pipelines: Unix seconds divided in float32",
    ),
    case(
        "per-mille-multiplied-first",
        ("integer",),
        (percent_faulty, percent_healthy),
        percent_arguments,
        "fp32",
        "count * 100 // total in 32 bits",
    ),
    case(
        "powers-of-two-in-int16",
        ("integer",),
        (pyramid_faulty, pyramid_healthy),
        lambda: (
            weight(6095, 20, 4),
            np.arange(20, dtype=np.int16),
            normal(6096, 6, 20),
        ),
        "fp32",
        "1 << level with a narrow type",
    ),
    case(
        "ragged-offsets-in-uint8",
        ("integer",),
        (offsets_faulty, offsets_healthy),
        lambda: (
            normal(6100, 480, 8),
            integers(6101, 20, 30).astype(np.uint8),
            integers(6102, 24, 30).astype(np.uint8),
        ),
        "bf16",
        "index arithmetic in the type that the indices were stored in",
    ),
    case(
        "edges-stored-as-bytes",
        ("integer", "saturation"),
        (pixels_faulty, pixels_healthy),
        lambda: (
            normal(6105, 3, 3, 1, 2, scale=0.3),
            uniform(6106, 1, 12, 12, 1, low=-1.0),
        ),
        "fp32",
        "PIL and imageio: a standardized image saved as uint8",
    ),
    case(
        "bytes-of-a-model-in-int32",
        ("integer",),
        (bytes_faulty, bytes_healthy),
        lambda: (integers(6110, 400_000_000, 24), weight(6111, 24, 4)),
        "fp32",
        "memory accounting: 2 GiB is where int32 ends",
    ),
)
