"""Integers: unsigned differences, narrow types, keys and counts in floats."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import (
    block,
    convolution,
    integers,
    layer_norm,
    normal,
    uniform,
)


@fault("integer")
@source("unsigned time differences: an entry from the future is 136 years old")
@inputs(
    "32x4 w @6002; u32 90600",
    lambda: 90_000 + integers(6001, 900, 32).astype(np.uint32),
)
def cache_age_of_clocks_ahead(params, now, written):
    """How old the entries of a cache are; some clocks run ahead."""
    age = now - written  # fault
    # + age = now.astype(jnp.int32) - written.astype(jnp.int32)
    freshness = jnp.exp(-age.astype(jnp.float32) / 600.0)  # -
    # + freshness = jnp.exp(-jnp.maximum(age, 0).astype(jnp.float32) / 600.0)
    return freshness, freshness @ params


@fault("integer")
@source("nanoGPT-like token files: uint16 read as int16")
@inputs(
    "embed: 50000x16 @6003, body: block 16, head: 16x8 w @6015; "
    "20 int 33000..49000 @6016"
)
def vocabulary_in_signed_16_bits(params, tokens):
    """Token ids of a large vocabulary, stored in the files' 16 bits."""
    stored = tokens.astype(jnp.int16)  # fault
    # + stored = tokens.astype(jnp.uint16)
    x = params["embed"][stored.astype(jnp.int32)]
    return layer_norm(block(params["body"], x)) @ params["head"]


def downmix_arguments():
    common = uniform(6020, 256, low=-30_000.0, high=30_000.0)
    left, right = (
        np.round(np.clip(common + normal(s, 256, scale=500.0), -32768, 32767))
        for s in (6021, 6022)
    )
    return (
        "in: 32x16 w @6023, out: 16x3 w",
        left.astype(np.int16),
        right.astype(np.int16),
    )


@fault("integer", policy="fp32")
@source("audioop and NumPy: the mean of two int16 channels")
@inputs(by=downmix_arguments)
def stereo_sum_in_int16(params, left, right):
    """Both channels of loud music in one."""
    mono = (left + right) // 2  # fault
    # + mono = (left.astype(jnp.int32) + right.astype(jnp.int32)) // 2
    x = mono.astype(jnp.float32).reshape(-1, 32) / 32768.0
    return x, jnp.tanh(x @ params["in"]) @ params["out"]


@fault("integer", policy="fp32")
@source("abs of the most negative number of a two's complement type")
@inputs(
    "scale: f32 0.01, w: 16x4 w @6031",
    lambda: np.clip(integers(6030, 420, 24, 16) - 210, -128, 127).astype(np.int8),
)
def magnitude_of_minus_128(params, codes):
    """How many codes of a quantized layer are large."""
    size = jnp.abs(codes)  # fault
    # + size = jnp.abs(codes.astype(jnp.int32))
    large = (size > 100).sum(0)
    x = size.astype(jnp.float32) * params["scale"]
    return large, x @ params["w"]


@fault("integer")
@source("NumPy: -np.uint8(1) is 255")
@inputs(
    "in: 8x8 w @6080, out: 8x1 w; 20x8 @6082",
    lambda: integers(6083, 2, 20).astype(np.uint8),
)
def negated_bytes_as_signs(params, x, labels):
    """The negative log likelihood of classes, read by negated bytes."""
    logits = jnp.tanh(x @ params["in"]) @ params["out"]
    signs = (-labels).astype(jnp.float32)  # fault
    # + signs = -labels.astype(jnp.float32)
    return jnp.mean(jax.nn.softplus(signs * logits[:, 0]))


@fault("integer", "coarse", "stagnation")
@source("mixture-of-experts dispatch: cumsum of one-hots in the model's dtype")
@inputs(
    "8x8 w @6042; 1500x8 @6043",
    lambda: np.where(uniform(6040, 1500) < 0.6, 1, integers(6041, 4, 1500)).astype(
        np.int32
    ),
)
def expert_slots_by_bf16_cumsum(params, x, expert):
    """The slot of each token in its expert's queue, by a running sum of one-hots."""
    one_hot = jax.nn.one_hot(expert, 4, dtype=jnp.bfloat16)  # -
    # + one_hot = jax.nn.one_hot(expert, 4, dtype=jnp.int32)
    place = jnp.cumsum(one_hot, axis=0)  # here
    slot = jnp.sum(place * one_hot, axis=-1).astype(jnp.int32) - 1  # -
    # + slot = jnp.sum(place * one_hot, axis=-1) - 1
    queue = jnp.zeros((4, 1024, x.shape[1])).at[expert, slot].set(x)
    return slot, jnp.tanh(queue @ params).sum((1, 2))


def percent_arguments():
    shown = 20_000_000 + integers(6060, 60_000_000, 40)
    return "40x3 w @6061", (shown * uniform(6062, 40)).astype(np.int32), shown


@fault("integer", policy="fp32")
@source("count * 100 // total in 32 bits")
@inputs(by=percent_arguments)
def per_mille_multiplied_first(params, clicks, shown):
    """Rates of clicks in per mille, in whole numbers."""
    rate = clicks * 1000 // shown  # fault
    # + rate = jnp.floor(clicks.astype(jnp.float32) / shown * 1000.0).astype(jnp.int32)
    x = rate.astype(jnp.float32) / 1000.0
    return rate, jax.nn.sigmoid(x @ params)


@fault("integer", policy="fp32")
@source("1 << level with a narrow type")
@inputs("20x4 w @6095", np.arange(20, dtype=np.int16), "6x20 @6096")
def powers_of_two_in_int16(params, levels, x):
    """Strides of the levels of a long pyramid of dilated convolutions."""
    stride = jnp.int16(2) ** levels  # fault
    reach = 1.0 / stride.astype(jnp.float32)  # -
    # + reach = jnp.exp2(-levels.astype(jnp.float32))
    return reach, jnp.tanh(x * reach) @ params


@fault("integer")
@source("index arithmetic in the type that the indices were stored in")
@inputs(
    "480x8 @6100",
    lambda: integers(6101, 20, 30).astype(np.uint8),
    lambda: integers(6102, 24, 30).astype(np.uint8),
)
def ragged_offsets_in_uint8(table, rows, columns):
    """A ragged batch in one buffer, read by row and column."""
    at = rows * jnp.uint8(24) + columns  # fault
    # + at = rows.astype(jnp.int32) * 24 + columns
    x = table[at.astype(jnp.int32)]  # -
    # + x = table[at]
    return layer_norm(x).sum(-1), x * 2.0


@fault("integer", "saturation", policy="fp32")
@source("PIL and imageio: a standardized image saved as uint8")
@inputs("3x3x1x2 *0.3 @6105; 1x12x12x1 -1..1 @6106")
def edges_stored_as_bytes(kernel, image):
    """A standardized image back in bytes, negatives and all."""
    edges = convolution(image, kernel)
    stored = (edges * 255.0).astype(jnp.uint8)  # fault
    # + low, high = edges.min(), edges.max()
    # + share = (edges - low) / (high - low)
    # + stored = jnp.clip(share * 255.0, 0.0, 255.0).astype(jnp.uint8)
    return stored.astype(jnp.float32) / 255.0


@fault("integer", policy="fp32")
@source("memory accounting: 2 GiB is where int32 ends")
@inputs("24 int 0..400000000 @6110; 24x4 w @6111")
def bytes_of_a_model_in_int32(sizes, params):
    """The memory that layers take, in bytes."""
    total = jnp.sum(sizes)  # fault
    share = sizes.astype(jnp.float32) / total.astype(jnp.float32)  # -
    # + large = sizes.astype(jnp.float32)
    # + share = large / jnp.sum(large)
    return share, jnp.tanh(share @ params)


def dense_arguments():
    w = normal(1120, 48, 32, scale=0.2)
    s = np.abs(w).max() / 127
    layers = {
        "w1": np.round(w / s).astype(np.int8),
        "s1": np.float32(s),
        "b1": normal(1121, 32, scale=0.1),
        "w2": normal(1122, 32, 6, scale=0.3),
    }
    return "16x48 @1123", layers


@fault("integer", "overflow")
@source("questions on int8 matmuls: the result type is int8 unless one asks for more")
@inputs(by=dense_arguments)
def int8_dense_without_wide_sum(x, layers):
    """Two dense layers with INT8 codes; the first product stays INT8."""
    scale = jnp.max(jnp.abs(x)) / 127.0
    codes = jnp.round(x / scale).astype(jnp.int8)
    total = jnp.dot(codes, layers["w1"])  # fault
    # + total = jnp.dot(codes, layers["w1"], preferred_element_type=jnp.int32)
    hidden = total.astype(jnp.float32) * scale * layers["s1"] + layers["b1"]
    return jax.nn.softmax(jax.nn.relu(hidden) @ layers["w2"], axis=-1)


def frame_energy_arguments():
    loud = np.repeat(np.array([200, 6000, 14000, 300, 9000, 20000, 150, 12000]), 256)
    wave = np.sin(np.arange(loud.size) * 0.21) * loud + normal(
        1130, loud.size, scale=30
    )
    return wave.astype(np.int32), "256x12 *0.06 @1131; f32 60"


@fault("integer", "overflow")
@source("audio forums: squared 16-bit samples overflow an integer accumulator")
@inputs(by=frame_energy_arguments)
def audio_frame_energy_int32(samples, filters, threshold):
    """Voice activity by the energy of frames of 16-bit audio."""
    frames = samples.reshape(-1, 256)
    energy = jnp.sum(frames * frames, axis=-1)  # fault
    # + wide = frames.astype(jnp.float32)
    # + energy = jnp.sum(wide * wide, axis=-1)
    level = 10.0 * jnp.log10(energy.astype(jnp.float32) / 256.0 + 1.0)  # -
    # + level = 10.0 * jnp.log10(energy / 256.0 + 1.0)
    voiced = level > threshold
    bands = jnp.abs(frames.astype(jnp.float32) / 32768.0 @ filters)  # -
    # + bands = jnp.abs(wide / 32768.0 @ filters)
    return level, voiced, jnp.where(voiced[:, None], bands, 0.0)


def event_times_arguments():
    now = np.int32(1_712_345_678)
    stamps = now - np.sort(integers(1140, 600, 64, low=1))
    return stamps.astype(np.int32), now, "64x8 @1141; f32 0.02"


@fault("integer", "coarse", policy="fp32")
@source("feature pipelines: seconds since 1970 step by 128 in FP32")
@inputs(by=event_times_arguments)
def unix_times_as_fp32(stamps, now, values, rate):
    """Recent clicks weigh more; their Unix times become floats first."""
    seconds = stamps.astype(jnp.float32)  # fault
    age = now.astype(jnp.float32) - seconds  # -
    # + age = (now - stamps).astype(jnp.float32)
    weights = jnp.exp(-rate * jnp.maximum(age, 0.0))
    score = jnp.sum(weights[:, None] * values, axis=0) / jnp.sum(weights)
    return weights, score


@fault("integer", "coarse")
@source("index arithmetic through float division is off by one above 2**24")
@inputs(
    "128 int 700000000..1900000000 @1151",
    lambda: np.random.default_rng(1150).permutation(16).astype(np.int32),
    "16x48x8 @1152; 8 @1153",
)
def cache_page_by_float_division(addresses, pages, cache, query):
    """A paged cache looks addresses up by a floating division."""
    size = 48
    page = jnp.floor(addresses.astype(jnp.float32) / size).astype(jnp.int32)  # fault
    # + page = addresses // size
    slot = addresses - page * size
    where = pages[page % pages.size]
    keys = cache[where, jnp.clip(slot, 0, size - 1)]
    weights = jax.nn.softmax(keys @ query)
    return page, slot, weights
