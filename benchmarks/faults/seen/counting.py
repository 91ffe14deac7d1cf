"""Faults of whole numbers: products before a modulus, counters, packed bits, dates."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import cross_entropy, integers, layer_norm, normal

#: Integers go through the FP32 of the engines, which are exact to 2**24.
ENGINES = nj.Policy(
    auto_cast="matmult", auto_cast_type="bf16", integer_path="fp32", name="engines"
)


@fault("integer")
@source("hash embeddings with x64 off: id * prime in int32 before the modulus")
@inputs("one: 61x8 @3001, two: 53x8, out: 8x4 w; 48 int 400000..1900000 @3004")
def hashing_trick_multiplies_first(params, ids):
    """The hashing trick: two tables of an embedding, ids of a large catalogue."""
    slots = jnp.stack([(ids * 7919) % 61, (ids * 31 + 7) % 53])  # fault
    # + slots = jnp.stack([(ids % 61 * 7919) % 61, (ids % 53 * 31 + 7) % 53])
    found = params["one"][slots[0]] + params["two"][slots[1]]
    return slots, jax.nn.softmax(layer_norm(found) @ params["out"])


@fault("integer", "overflow")
@source("gemmlowp and VNNI: pmaddubsw saturates or wraps in 16 bits")
@inputs(
    lambda: (integers(3010, 120, 6, 64) + 4).astype(np.int8),
    lambda: (integers(3011, 128, 64, 5) - 20).astype(np.int8),
    "f32 0.0001",
)
def int8_products_in_int16_sums(x8, w8, scale):
    """A quantized layer as a kernel for 16-bit lanes: INT8 in, INT16 sums."""
    dot = jax.lax.dot(x8, w8, preferred_element_type=jnp.int16)  # fault
    # + dot = jax.lax.dot(x8, w8, preferred_element_type=jnp.int32)
    y = dot.astype(jnp.float32) * scale
    return jax.nn.gelu(y)


@fault("integer", policy=ENGINES)
@source("accelerators whose integer ALU is FP32: flat indices beyond 2**24")
@inputs("256x6 @3012; 64 int 2000..32000 @3013; 64 int 0..40961 @3014")
def raster_key_through_fp32_engines(table, rows, columns):
    """A spatial hash of raster cells, keyed by their flat index."""
    flat = rows * 40_961 + columns  # fault
    cell = flat & 255  # -
    # + cell = ((rows & 255) * (40_961 & 255) + (columns & 255)) & 255
    features = table[cell]
    return cell, jnp.tanh(features.mean(0))


@fault("integer")
@source("cumsum with dtype= of the input: jnp and torch differ on promotion")
@inputs(
    "in: 3x16 w @3020, out: 16x2 w",
    lambda: integers(3022, 4_000, 8, 30).astype(np.int16),
    "8x30 @3023",
)
def event_times_cumsum_in_int16(params, durations, marks):
    """When each of a session's events happened, from gaps in milliseconds."""
    since = jnp.cumsum(durations, axis=1, dtype=jnp.int16)  # fault
    # + since = jnp.cumsum(durations, axis=1, dtype=jnp.int32)
    hours = since.astype(jnp.float32) / 60_000.0
    x = jnp.stack([jnp.sin(hours), jnp.cos(hours), marks], axis=-1)
    return hours, jax.nn.relu(x @ params["in"]) @ params["out"]


@fault("integer")
@source("OpenCV and NumPy questions: img * 1.25 on uint8 wraps to black")
@inputs("64x4 w @3024", lambda: integers(3025, 256, 16, 32).astype(np.uint8))
def contrast_on_bytes(params, image):
    """Augmentation on bytes: contrast times 5/4 around the middle."""
    bright = image * jnp.uint8(5) // jnp.uint8(4)  # fault
    # + wide = image.astype(jnp.int32) * 5 // 4
    # + bright = jnp.minimum(wide, 255).astype(jnp.uint8)
    x = bright.astype(jnp.float32).reshape(8, -1) / 255.0
    return bright, jax.nn.softmax(layer_norm(x) @ params)


@fault("integer")
@source("the year 2038 problem: seconds since 1970 in 32 bits")
@inputs("24 0.01..0.05 @3026; 24 int 20000..32000 @3027; 24 int 0..24 @3028")
def bonds_after_2038(rates, days, hours):
    """Day counts of bonds become seconds since 1970; some mature after 2038."""
    seconds = days * 86_400 + hours * 3_600  # fault
    now = 20_000 * 86_400.0  # -
    years = (seconds.astype(jnp.float32) - now) / (365.25 * 86_400)  # -
    # + years = (days - 20_000).astype(jnp.float32) / 365.25
    # + years = years + hours.astype(jnp.float32) / (24 * 365.25)
    return years, jnp.exp(-rates * years)


@fault("integer")
@source("consumed_train_samples of trainers: step * global batch in int32")
@inputs("12x4 w @3030; 16x12 @3031; 16 int 0..4 @3032; i32 650000")
def samples_seen_beyond_int32(w, x, y, step):
    """SGD with a rate that decays with the samples seen in pre-training so far."""
    seen = step * 4096  # fault
    # + seen = step.astype(jnp.float32) * 4096.0
    rate = 0.2 / jnp.sqrt(1.0 + seen.astype(jnp.float32) / 1e9)  # -
    # + rate = 0.2 / jnp.sqrt(1.0 + seen / 1e9)

    def loss_of(w):
        return cross_entropy(x @ w, y)

    loss, grad = jax.value_and_grad(loss_of)(w)
    return w - rate * grad, rate, loss


@fault("integer")
@source("Viola and Jones: integral images need wider sums than their pixels")
@inputs("9x3 w @3034", lambda: integers(3035, 256, 32, 32).astype(np.uint8))
def summed_area_table_in_int16(params, image):
    """Box filters of a face detector by a summed-area table."""
    rows = jnp.cumsum(image.astype(jnp.int16), axis=0, dtype=jnp.int16)  # -
    # + rows = jnp.cumsum(image.astype(jnp.int32), axis=0)
    table = jnp.cumsum(rows, axis=1, dtype=jnp.int16)  # fault
    # + table = jnp.cumsum(rows, axis=1)
    total = table.astype(jnp.float32)[::8, ::8] / 255.0
    boxes = total[1:, 1:] - total[:-1, 1:] - total[1:, :-1] + total[:-1, :-1]
    return total, jnp.tanh(boxes.reshape(-1) @ params)


def first_stop_arguments():
    tokens = integers(3040, 60, 12, 900) + np.int32(3)
    tokens[np.arange(12), 301 + 47 * np.arange(12)] = 2
    return "embed: 64x8 @3041, out: 8x3 w", tokens


@fault("integer", "coarse")
@source("transformers: argmax of masks written with arange in the model's dtype")
@inputs(by=first_stop_arguments)
def first_stop_token_by_bf16_iota(params, tokens):
    """Where each answer ends: the first stop token, found with a float iota."""
    place = jnp.arange(tokens.shape[1]).astype(jnp.bfloat16)  # fault
    # + place = jnp.arange(tokens.shape[1])
    ends = jnp.min(jnp.where(tokens == 2, place, jnp.bfloat16(1024.0)), axis=1)  # -
    length = ends.astype(jnp.int32)  # -
    # + length = jnp.min(jnp.where(tokens == 2, place, 1024), axis=1)
    inside = jnp.arange(tokens.shape[1])[None] < length[:, None]  # -
    # + inside = place[None] < length[:, None]
    h = jnp.where(inside[..., None], params["embed"][tokens], 0.0).sum(1)
    last = jnp.take_along_axis(tokens, length[:, None] - 1, axis=1)[:, 0]
    h = h / length[:, None] + params["embed"][last]
    return last, jax.nn.softmax(h @ params["out"])


@fault("integer", "absorption", "coarse", policy="fp32")
@source("locality-sensitive hashing: bits @ 2**arange(k) with k above 24")
@inputs(
    "table: 127x6 @3044, out: 6x2 w", lambda: integers(3046, 2, 40, 30).astype(bool)
)
def thirty_flags_packed_in_fp32(params, flags):
    """Thirty feature flags a row packed into one id by a dot product in FP32."""
    powers = 2.0 ** jnp.arange(30)  # -
    # + powers = jnp.left_shift(1, jnp.arange(30))
    key = jnp.sum(flags.astype(jnp.float32) * powers, axis=-1)  # fault
    # + key = jnp.sum(flags.astype(jnp.int32) * powers, axis=-1)
    row = key.astype(jnp.int32) % 127  # -
    # + row = key % 127
    return row, jnp.tanh(params["table"][row] @ params["out"])


@fault("integer")
@source("DSP application notes: guard bits of Q15 products")
@inputs(
    lambda: (normal(3047, 48) * 9_000).astype(np.int32),
    lambda: (normal(3048, 8) * 9_000).astype(np.int32),
)
def fixed_point_shift_before_sum(signal, taps):
    """A filter of a DSP in Q15: products are scaled back only after the shift."""

    def push(line, x):
        line = jnp.concatenate([x[None], line[:-1]])
        product = (line * taps) << 4  # fault
        return line, jnp.sum(product >> 19)  # -
        # + return line, jnp.sum((line * taps) >> 15)

    line = jnp.zeros(taps.shape, jnp.int32)
    _, out = jax.lax.scan(push, line, signal)
    return out.astype(jnp.float32) / 32768.0


@fault("stagnation", "absorption", "integer")
@source("BatchNorm's num_batches_tracked cast with the module's other buffers")
@inputs("420x4x8 @3050; 8x6 w @3051")
def calibration_count_stops_at_256(x, w):
    """Means of activations for calibration, kept with their count over a scan."""

    def visit(carry, batch):
        count, mean = carry
        h = jax.nn.relu(batch @ w).mean(0)
        count = count + jnp.bfloat16(1)  # fault
        # + count = count + 1
        mean = mean + (h - mean) / count.astype(jnp.float32)  # -
        return (count, mean), None  # -
        # + return (count, mean + (h - mean) / count), None

    start = (jnp.bfloat16(0), jnp.zeros(w.shape[1]))  # -
    # + start = (jnp.int32(0), jnp.zeros(w.shape[1]))
    (count, mean), _ = jax.lax.scan(visit, start, x)
    return count.astype(jnp.float32), mean
