"""Integers that wrap around, or that pass through floats."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.common import integers, mlp, mlp_params, normal


def bincount_product(readings, low, high, params):
    """Readings of a counter are binned; the histogram feeds a small network."""
    bins = 60_000
    shifted = readings - low
    place = shifted * bins // (high - low)  # fault
    coarse = place // (bins // 32)
    hist = jnp.zeros(32).at[jnp.clip(coarse, 0, 31)].add(1.0)
    return place, mlp(params, jnp.log1p(hist))


def bincount_quotients(readings, low, high, params):
    bins = 60_000
    shifted = readings - low
    span = high - low
    whole, rest = bins // span, bins % span
    quarter, left = shifted // 256, shifted % 256
    carried = quarter * rest % span * 256 + left * rest
    place = shifted * whole + quarter * rest // span * 256 + carried // span
    coarse = place // (bins // 32)
    hist = jnp.zeros(32).at[jnp.clip(coarse, 0, 31)].add(1.0)
    return place, mlp(params, jnp.log1p(hist))


def bincount_arguments():
    low, high = np.int32(1_000_000), np.int32(1_048_000)
    readings = integers(1100, 1_000_000, 1_048_000, 512)
    return readings, low, high, mlp_params(1101, 32, 16, 3)


def ids_cast_with_features(tables, ids, features, params):
    """A recommender casts its whole input row to FP16, item ids included."""
    row = jnp.concatenate([ids, features], axis=-1)
    row = row.astype(jnp.float16)  # fault
    items = row[:, :2].astype(jnp.int32) % 509
    dense = row[:, 2:].astype(jnp.float32)
    users, goods = tables[0][items[:, 0]], tables[1][items[:, 1]]
    match = jnp.sum(users * goods, axis=-1, keepdims=True)
    return items, jax.nn.sigmoid(match + mlp(params, dense))


def ids_kept(tables, ids, features, params):
    row = jnp.concatenate([ids, features], axis=-1)
    items = row[:, :2].astype(jnp.int32) % 509
    dense = row[:, 2:].astype(jnp.float16).astype(jnp.float32)
    users, goods = tables[0][items[:, 0]], tables[1][items[:, 1]]
    match = jnp.sum(users * goods, axis=-1, keepdims=True)
    return items, jax.nn.sigmoid(match + mlp(params, dense))


def ids_arguments():
    tables = [normal(1110, 509, 8, scale=0.5), normal(1111, 509, 8, scale=0.5)]
    ids = integers(1112, 0, 50_000, 64, 2).astype(np.float32)
    return tables, ids, normal(1113, 64, 6), mlp_params(1114, 6, 16, 1)


def dense_int8_dot(x, layers):
    """Two dense layers with INT8 codes; the first product stays INT8."""
    scale = jnp.max(jnp.abs(x)) / 127.0
    codes = jnp.round(x / scale).astype(jnp.int8)
    total = jnp.dot(codes, layers["w1"])  # fault
    hidden = total.astype(jnp.float32) * scale * layers["s1"] + layers["b1"]
    return jax.nn.softmax(jax.nn.relu(hidden) @ layers["w2"], axis=-1)


def dense_int32_dot(x, layers):
    scale = jnp.max(jnp.abs(x)) / 127.0
    codes = jnp.round(x / scale).astype(jnp.int8)
    total = jnp.dot(codes, layers["w1"], preferred_element_type=jnp.int32)
    hidden = total.astype(jnp.float32) * scale * layers["s1"] + layers["b1"]
    return jax.nn.softmax(jax.nn.relu(hidden) @ layers["w2"], axis=-1)


def dense_arguments():
    w = normal(1120, 48, 32, scale=0.2)
    s = np.abs(w).max() / 127
    layers = {
        "w1": np.round(w / s).astype(np.int8),
        "s1": np.float32(s),
        "b1": normal(1121, 32, scale=0.1),
        "w2": normal(1122, 32, 6, scale=0.3),
    }
    return normal(1123, 16, 48), layers


def frame_energy_int32(samples, filters, threshold):
    """Voice activity by the energy of frames of 16-bit audio."""
    frames = samples.reshape(-1, 256)
    energy = jnp.sum(frames * frames, axis=-1)  # fault
    level = 10.0 * jnp.log10(energy.astype(jnp.float32) / 256.0 + 1.0)
    voiced = level > threshold
    bands = jnp.abs(frames.astype(jnp.float32) / 32768.0 @ filters)
    return level, voiced, jnp.where(voiced[:, None], bands, 0.0)


def frame_energy_fp32(samples, filters, threshold):
    frames = samples.reshape(-1, 256)
    wide = frames.astype(jnp.float32)
    energy = jnp.sum(wide * wide, axis=-1)
    level = 10.0 * jnp.log10(energy / 256.0 + 1.0)
    voiced = level > threshold
    bands = jnp.abs(wide / 32768.0 @ filters)
    return level, voiced, jnp.where(voiced[:, None], bands, 0.0)


def frame_energy_arguments():
    loud = np.repeat(np.array([200, 6000, 14000, 300, 9000, 20000, 150, 12000]), 256)
    wave = np.sin(np.arange(loud.size) * 0.21) * loud + normal(
        1130, loud.size, scale=30
    )
    return wave.astype(np.int32), normal(1131, 256, 12, scale=0.06), np.float32(60)


def event_times_in_fp32(stamps, now, values, rate):
    """Recent clicks weigh more; their Unix times become floats first."""
    seconds = stamps.astype(jnp.float32)  # fault
    age = now.astype(jnp.float32) - seconds
    weights = jnp.exp(-rate * jnp.maximum(age, 0.0))
    score = jnp.sum(weights[:, None] * values, axis=0) / jnp.sum(weights)
    return weights, score


def event_times_subtracted(stamps, now, values, rate):
    age = (now - stamps).astype(jnp.float32)
    weights = jnp.exp(-rate * jnp.maximum(age, 0.0))
    score = jnp.sum(weights[:, None] * values, axis=0) / jnp.sum(weights)
    return weights, score


def event_times_arguments():
    now = np.int32(1_712_345_678)
    stamps = now - np.sort(integers(1140, 1, 600, 64))
    return stamps.astype(np.int32), now, normal(1141, 64, 8), np.float32(0.02)


def page_by_float_division(addresses, pages, cache, query):
    """A paged cache looks addresses up by a floating division."""
    size = 48
    page = jnp.floor(addresses.astype(jnp.float32) / size).astype(jnp.int32)  # fault
    slot = addresses - page * size
    where = pages[page % pages.size]
    keys = cache[where, jnp.clip(slot, 0, size - 1)]
    weights = jax.nn.softmax(keys @ query)
    return page, slot, weights


def page_by_integer_division(addresses, pages, cache, query):
    size = 48
    page = addresses // size
    slot = addresses - page * size
    where = pages[page % pages.size]
    keys = cache[where, jnp.clip(slot, 0, size - 1)]
    weights = jax.nn.softmax(keys @ query)
    return page, slot, weights


def page_arguments():
    pages = np.random.default_rng(1150).permutation(16).astype(np.int32)
    addresses = integers(1151, 700_000_000, 1_900_000_000, 128)
    return addresses, pages, normal(1152, 16, 48, 8), normal(1153, 8)


FAULTS = (
    Fault(
        name="histogram-bin-product-int32",
        kinds=("integer",),
        faulty=bincount_product,
        healthy=bincount_quotients,
        arguments=bincount_arguments,
        policy="bf16",
        source=(
            "histogram kernels: value times number of bins wraps int32, bins go "
            "negative"
        ),
    ),
    Fault(
        name="item-ids-cast-to-half",
        kinds=("integer", "coarse"),
        faulty=ids_cast_with_features,
        healthy=ids_kept,
        arguments=ids_arguments,
        policy="bf16",
        source=(
            "issues: casting a batch to half also casts ids, embeddings are wrong rows"
        ),
    ),
    Fault(
        name="int8-dense-without-wide-sum",
        kinds=("integer", "overflow"),
        faulty=dense_int8_dot,
        healthy=dense_int32_dot,
        arguments=dense_arguments,
        policy="bf16",
        source=(
            "questions on int8 matmuls: the result type is int8 unless one asks for "
            "more"
        ),
    ),
    Fault(
        name="audio-frame-energy-int32",
        kinds=("integer", "overflow"),
        faulty=frame_energy_int32,
        healthy=frame_energy_fp32,
        arguments=frame_energy_arguments,
        policy="bf16",
        source="audio forums: squared 16-bit samples overflow an integer accumulator",
    ),
    Fault(
        name="unix-times-as-fp32",
        kinds=("integer", "coarse"),
        faulty=event_times_in_fp32,
        healthy=event_times_subtracted,
        arguments=event_times_arguments,
        policy="fp32",
        source="feature pipelines: seconds since 1970 step by 128 in FP32",
    ),
    Fault(
        name="cache-page-by-float-division",
        kinds=("integer", "coarse"),
        faulty=page_by_float_division,
        healthy=page_by_integer_division,
        arguments=page_arguments,
        policy="bf16",
        source="index arithmetic through float division is off by one above 2**24",
    ),
)
