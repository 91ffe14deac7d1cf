"""Faults of whole numbers: products before a modulus, counters, packed bits, dates."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import (
    cross_entropy,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)

#: Integers go through the FP32 of the engines, which are exact to 2**24.
ENGINES = nj.Policy(
    auto_cast="matmult", auto_cast_type="bf16", integer_path="fp32", name="engines"
)


def buckets_faulty(params, ids):
    """The hashing trick: two tables of an embedding, ids of a large catalogue."""
    slots = jnp.stack([(ids * 7919) % 61, (ids * 31 + 7) % 53])  # fault
    found = params["one"][slots[0]] + params["two"][slots[1]]
    return slots, jax.nn.softmax(layer_norm(found) @ params["out"])


def buckets_healthy(params, ids):
    slots = jnp.stack([(ids % 61 * 7919) % 61, (ids % 53 * 31 + 7) % 53])
    found = params["one"][slots[0]] + params["two"][slots[1]]
    return slots, jax.nn.softmax(layer_norm(found) @ params["out"])


def buckets_arguments():
    params = {
        "one": normal(3001, 61, 8),
        "two": normal(3002, 53, 8),
        "out": weight(3003, 8, 4),
    }
    return params, integers(3004, 1_500_000, 48) + np.int32(400_000)


def partial_sums_faulty(x8, w8, scale):
    """A quantized layer as a kernel for 16-bit lanes: INT8 in, INT16 sums."""
    dot = jax.lax.dot(x8, w8, preferred_element_type=jnp.int16)  # fault
    y = dot.astype(jnp.float32) * scale
    return jax.nn.gelu(y)


def partial_sums_healthy(x8, w8, scale):
    dot = jax.lax.dot(x8, w8, preferred_element_type=jnp.int32)
    y = dot.astype(jnp.float32) * scale
    return jax.nn.gelu(y)


def grid_faulty(table, rows, columns):
    """A spatial hash of raster cells, keyed by their flat index."""
    flat = rows * 40_961 + columns  # fault
    cell = flat & 255
    features = table[cell]
    return cell, jnp.tanh(features.mean(0))


def grid_healthy(table, rows, columns):
    cell = ((rows & 255) * (40_961 & 255) + (columns & 255)) & 255
    features = table[cell]
    return cell, jnp.tanh(features.mean(0))


def visits_faulty(params, durations, marks):
    """When each of a session's events happened, from gaps in milliseconds."""
    since = jnp.cumsum(durations, axis=1, dtype=jnp.int16)  # fault
    hours = since.astype(jnp.float32) / 60_000.0
    x = jnp.stack([jnp.sin(hours), jnp.cos(hours), marks], axis=-1)
    return hours, jax.nn.relu(x @ params["in"]) @ params["out"]


def visits_healthy(params, durations, marks):
    since = jnp.cumsum(durations, axis=1, dtype=jnp.int32)
    hours = since.astype(jnp.float32) / 60_000.0
    x = jnp.stack([jnp.sin(hours), jnp.cos(hours), marks], axis=-1)
    return hours, jax.nn.relu(x @ params["in"]) @ params["out"]


def brighten_faulty(params, image):
    """Augmentation on bytes: contrast times 5/4 around the middle."""
    bright = image * jnp.uint8(5) // jnp.uint8(4)  # fault
    x = bright.astype(jnp.float32).reshape(8, -1) / 255.0
    return bright, jax.nn.softmax(layer_norm(x) @ params)


def brighten_healthy(params, image):
    wide = image.astype(jnp.int32) * 5 // 4
    bright = jnp.minimum(wide, 255).astype(jnp.uint8)
    x = bright.astype(jnp.float32).reshape(8, -1) / 255.0
    return bright, jax.nn.softmax(layer_norm(x) @ params)


def maturities_faulty(rates, days, hours):
    """Day counts of bonds become seconds since 1970; some mature after 2038."""
    seconds = days * 86_400 + hours * 3_600  # fault
    now = 20_000 * 86_400.0
    years = (seconds.astype(jnp.float32) - now) / (365.25 * 86_400)
    return years, jnp.exp(-rates * years)


def maturities_healthy(rates, days, hours):
    years = (days - 20_000).astype(jnp.float32) / 365.25
    years = years + hours.astype(jnp.float32) / (24 * 365.25)
    return years, jnp.exp(-rates * years)


def samples_faulty(w, x, y, step):
    """SGD with a rate that decays with the samples seen in pre-training so far."""
    seen = step * 4096  # fault
    rate = 0.2 / jnp.sqrt(1.0 + seen.astype(jnp.float32) / 1e9)

    def loss_of(w):
        return cross_entropy(x @ w, y)

    loss, grad = jax.value_and_grad(loss_of)(w)
    return w - rate * grad, rate, loss


def samples_healthy(w, x, y, step):
    seen = step.astype(jnp.float32) * 4096.0
    rate = 0.2 / jnp.sqrt(1.0 + seen / 1e9)

    def loss_of(w):
        return cross_entropy(x @ w, y)

    loss, grad = jax.value_and_grad(loss_of)(w)
    return w - rate * grad, rate, loss


def summed_area_faulty(params, image):
    """Box filters of a face detector by a summed-area table."""
    rows = jnp.cumsum(image.astype(jnp.int16), axis=0, dtype=jnp.int16)
    table = jnp.cumsum(rows, axis=1, dtype=jnp.int16)  # fault
    total = table.astype(jnp.float32)[::8, ::8] / 255.0
    boxes = total[1:, 1:] - total[:-1, 1:] - total[1:, :-1] + total[:-1, :-1]
    return total, jnp.tanh(boxes.reshape(-1) @ params)


def summed_area_healthy(params, image):
    rows = jnp.cumsum(image.astype(jnp.int32), axis=0)
    table = jnp.cumsum(rows, axis=1)
    total = table.astype(jnp.float32)[::8, ::8] / 255.0
    boxes = total[1:, 1:] - total[:-1, 1:] - total[1:, :-1] + total[:-1, :-1]
    return total, jnp.tanh(boxes.reshape(-1) @ params)


def first_stop_faulty(params, tokens):
    """Where each answer ends: the first stop token, found with a float iota."""
    place = jnp.arange(tokens.shape[1]).astype(jnp.bfloat16)  # fault
    ends = jnp.min(jnp.where(tokens == 2, place, jnp.bfloat16(1024.0)), axis=1)
    length = ends.astype(jnp.int32)
    inside = jnp.arange(tokens.shape[1])[None] < length[:, None]
    h = jnp.where(inside[..., None], params["embed"][tokens], 0.0).sum(1)
    last = jnp.take_along_axis(tokens, length[:, None] - 1, axis=1)[:, 0]
    h = h / length[:, None] + params["embed"][last]
    return last, jax.nn.softmax(h @ params["out"])


def first_stop_healthy(params, tokens):
    place = jnp.arange(tokens.shape[1])
    length = jnp.min(jnp.where(tokens == 2, place, 1024), axis=1)
    inside = place[None] < length[:, None]
    h = jnp.where(inside[..., None], params["embed"][tokens], 0.0).sum(1)
    last = jnp.take_along_axis(tokens, length[:, None] - 1, axis=1)[:, 0]
    h = h / length[:, None] + params["embed"][last]
    return last, jax.nn.softmax(h @ params["out"])


def first_stop_arguments():
    tokens = integers(3040, 60, 12, 900) + np.int32(3)
    tokens[np.arange(12), 301 + 47 * np.arange(12)] = 2
    params = {"embed": normal(3041, 64, 8), "out": weight(3042, 8, 3)}
    return params, tokens


def bits_faulty(params, flags):
    """Thirty feature flags a row packed into one id by a dot product in FP32."""
    powers = 2.0 ** jnp.arange(30)
    key = jnp.sum(flags.astype(jnp.float32) * powers, axis=-1)  # fault
    row = key.astype(jnp.int32) % 127
    return row, jnp.tanh(params["table"][row] @ params["out"])


def bits_healthy(params, flags):
    powers = jnp.left_shift(1, jnp.arange(30))
    key = jnp.sum(flags.astype(jnp.int32) * powers, axis=-1)
    row = key % 127
    return row, jnp.tanh(params["table"][row] @ params["out"])


def fixed_point_faulty(signal, taps):
    """A filter of a DSP in Q15: products are scaled back only after the shift."""

    def push(line, x):
        line = jnp.concatenate([x[None], line[:-1]])
        product = (line * taps) << 4  # fault
        return line, jnp.sum(product >> 19)

    line = jnp.zeros(taps.shape, jnp.int32)
    _, out = jax.lax.scan(push, line, signal)
    return out.astype(jnp.float32) / 32768.0


def fixed_point_healthy(signal, taps):
    def push(line, x):
        line = jnp.concatenate([x[None], line[:-1]])
        return line, jnp.sum((line * taps) >> 15)

    line = jnp.zeros(taps.shape, jnp.int32)
    _, out = jax.lax.scan(push, line, signal)
    return out.astype(jnp.float32) / 32768.0


def running_faulty(x, w):
    """Means of activations for calibration, kept with their count over a scan."""

    def visit(carry, batch):
        count, mean = carry
        h = jax.nn.relu(batch @ w).mean(0)
        count = count + jnp.bfloat16(1)  # fault
        mean = mean + (h - mean) / count.astype(jnp.float32)
        return (count, mean), None

    start = (jnp.bfloat16(0), jnp.zeros(w.shape[1]))
    (count, mean), _ = jax.lax.scan(visit, start, x)
    return count.astype(jnp.float32), mean


def running_healthy(x, w):
    def visit(carry, batch):
        count, mean = carry
        h = jax.nn.relu(batch @ w).mean(0)
        count = count + 1
        return (count, mean + (h - mean) / count), None

    start = (jnp.int32(0), jnp.zeros(w.shape[1]))
    (count, mean), _ = jax.lax.scan(visit, start, x)
    return count.astype(jnp.float32), mean


FAULTS = (
    Fault(
        name="hashing-trick-multiplies-first",
        kinds=("integer",),
        faulty=buckets_faulty,
        healthy=buckets_healthy,
        arguments=buckets_arguments,
        policy="bf16",
        source="hash embeddings with x64 off: id * prime in int32 before the modulus",
    ),
    Fault(
        name="int8-products-in-int16-sums",
        kinds=("integer", "overflow"),
        faulty=partial_sums_faulty,
        healthy=partial_sums_healthy,
        arguments=lambda: (
            (integers(3010, 120, 6, 64) + 4).astype(np.int8),
            (integers(3011, 128, 64, 5) - 20).astype(np.int8),
            np.float32(1e-4),
        ),
        policy="bf16",
        source="gemmlowp and VNNI: pmaddubsw saturates or wraps in 16 bits",
    ),
    Fault(
        name="raster-key-through-fp32-engines",
        kinds=("integer",),
        faulty=grid_faulty,
        healthy=grid_healthy,
        arguments=lambda: (
            normal(3012, 256, 6),
            integers(3013, 30_000, 64) + np.int32(2_000),
            integers(3014, 40_961, 64),
        ),
        policy=ENGINES,
        source="accelerators whose integer ALU is FP32: flat indices beyond 2**24",
    ),
    Fault(
        name="event-times-cumsum-in-int16",
        kinds=("integer",),
        faulty=visits_faulty,
        healthy=visits_healthy,
        arguments=lambda: (
            {"in": weight(3020, 3, 16), "out": weight(3021, 16, 2)},
            integers(3022, 4_000, 8, 30).astype(np.int16),
            normal(3023, 8, 30),
        ),
        policy="bf16",
        source="cumsum with dtype= of the input: jnp and torch differ on promotion",
    ),
    Fault(
        name="contrast-on-bytes",
        kinds=("integer",),
        faulty=brighten_faulty,
        healthy=brighten_healthy,
        arguments=lambda: (
            weight(3024, 64, 4),
            integers(3025, 256, 16, 32).astype(np.uint8),
        ),
        policy="bf16",
        source="OpenCV and NumPy questions: img * 1.25 on uint8 wraps to black",
    ),
    Fault(
        name="bonds-after-2038",
        kinds=("integer",),
        faulty=maturities_faulty,
        healthy=maturities_healthy,
        arguments=lambda: (
            uniform(3026, 24, low=0.01, high=0.05),
            integers(3027, 12_000, 24) + np.int32(20_000),
            integers(3028, 24, 24),
        ),
        policy="bf16",
        source="the year 2038 problem: seconds since 1970 in 32 bits",
    ),
    Fault(
        name="samples-seen-beyond-int32",
        kinds=("integer",),
        faulty=samples_faulty,
        healthy=samples_healthy,
        arguments=lambda: (
            weight(3030, 12, 4),
            normal(3031, 16, 12),
            integers(3032, 4, 16),
            np.int32(650_000),
        ),
        policy="bf16",
        source="consumed_train_samples of trainers: step * global batch in int32",
    ),
    Fault(
        name="summed-area-table-in-int16",
        kinds=("integer",),
        faulty=summed_area_faulty,
        healthy=summed_area_healthy,
        arguments=lambda: (
            weight(3034, 9, 3),
            integers(3035, 256, 32, 32).astype(np.uint8),
        ),
        policy="bf16",
        source="Viola and Jones: integral images need wider sums than their pixels",
    ),
    Fault(
        name="first-stop-token-by-bf16-iota",
        kinds=("integer", "coarse"),
        faulty=first_stop_faulty,
        healthy=first_stop_healthy,
        arguments=first_stop_arguments,
        policy="bf16",
        source="transformers: argmax of masks written with arange in the model's dtype",
    ),
    Fault(
        name="thirty-flags-packed-in-fp32",
        kinds=("integer", "absorption", "coarse"),
        faulty=bits_faulty,
        healthy=bits_healthy,
        arguments=lambda: (
            {"table": normal(3044, 127, 6), "out": weight(3045, 6, 2)},
            integers(3046, 2, 40, 30).astype(bool),
        ),
        policy="fp32",
        source="locality-sensitive hashing: bits @ 2**arange(k) with k above 24",
    ),
    Fault(
        name="fixed-point-shift-before-sum",
        kinds=("integer",),
        faulty=fixed_point_faulty,
        healthy=fixed_point_healthy,
        arguments=lambda: (
            (normal(3047, 48) * 9_000).astype(np.int32),
            (normal(3048, 8) * 9_000).astype(np.int32),
        ),
        policy="bf16",
        source="DSP application notes: guard bits of Q15 products",
    ),
    Fault(
        name="calibration-count-stops-at-256",
        kinds=("stagnation", "absorption", "integer"),
        faulty=running_faulty,
        healthy=running_healthy,
        arguments=lambda: (normal(3050, 420, 4, 8), weight(3051, 8, 6)),
        policy="bf16",
        source="BatchNorm's num_batches_tracked cast with the module's other buffers",
    ),
)
