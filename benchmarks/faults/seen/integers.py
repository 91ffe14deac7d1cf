"""Faults of integers: wrapped products and sums, ids and counters in floats."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import (
    block,
    block_params,
    integers,
    layer_norm,
    normal,
    weight,
)


def edges_faulty(features, params, sources, targets, nodes):
    """Sorts the edges of a graph by one key and reads the sources back."""
    key = sources * nodes + targets  # fault
    order = jnp.argsort(key)
    ordered = key[order]
    first = ordered // nodes
    second = ordered - first * nodes
    h = jnp.tanh(features @ params["w"])
    message = h[first % 64] - h[second % 64]
    return first, second, message @ params["out"]


def edges_healthy(features, params, sources, targets, nodes):
    order = jnp.lexsort((targets, sources))
    first, second = sources[order], targets[order]
    h = jnp.tanh(features @ params["w"])
    message = h[first % 64] - h[second % 64]
    return first, second, message @ params["out"]


def lookup_faulty(params, tokens):
    """A model cast to BF16 with all its inputs, token ids too."""
    ids = tokens.astype(jnp.bfloat16)  # fault
    x = params["embed"][ids.astype(jnp.int32)]
    x = block(params["body"], x)
    return layer_norm(x) @ params["head"]


def lookup_healthy(params, tokens):
    x = params["embed"][tokens].astype(jnp.bfloat16).astype(jnp.float32)
    x = block(params["body"], x)
    return layer_norm(x) @ params["head"]


def lookup_arguments():
    params = {
        "embed": normal(560, 600, 16),
        "body": block_params(561, 16),
        "head": weight(571, 16, 8),
    }
    return params, integers(572, 300, 24) + np.int32(300)


def motion_faulty(before, now, params):
    """Motion between two frames of a camera."""
    change = now - before  # fault
    moved = change.astype(jnp.float32) / 255.0
    energy = (moved * moved).reshape(8, 4, 8, 4).mean((1, 3)).reshape(-1)
    return energy, jax.nn.sigmoid(energy @ params["w"] + params["b"])


def motion_healthy(before, now, params):
    change = now.astype(jnp.int32) - before.astype(jnp.int32)
    moved = change.astype(jnp.float32) / 255.0
    energy = (moved * moved).reshape(8, 4, 8, 4).mean((1, 3)).reshape(-1)
    return energy, jax.nn.sigmoid(energy @ params["w"] + params["b"])


def motion_arguments():
    before = integers(573, 220, 32, 32) + 18
    now = before + integers(574, 30, 32, 32) - 15
    params = {"w": weight(575, 64, 4), "b": normal(576, 4)}
    return before.astype(np.uint8), now.astype(np.uint8), params


def product_faulty(params, x):
    """An int8 layer whose products are added up by hand."""
    scale = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / 127.0
    codes = jnp.round(x / scale).astype(jnp.int8)
    terms = codes[:, :, None] * params["codes"]  # fault
    total = jnp.sum(terms.astype(jnp.int32), axis=1)
    y = total.astype(jnp.float32) * scale * params["scale"]
    return jax.nn.relu(y) @ params["out"]


def product_healthy(params, x):
    scale = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / 127.0
    codes = jnp.round(x / scale).astype(jnp.int8)
    terms = codes[:, :, None].astype(jnp.int32) * params["codes"].astype(jnp.int32)
    total = jnp.sum(terms, axis=1)
    y = total.astype(jnp.float32) * scale * params["scale"]
    return jax.nn.relu(y) @ params["out"]


def product_arguments():
    w = weight(577, 32, 24)
    scale = np.abs(w).max(0) / 127.0
    codes = np.round(w / scale).astype(np.int8)
    return {"codes": codes, "scale": scale, "out": weight(578, 24, 4)}, normal(
        579, 16, 32
    )


def loudness_faulty(samples, params):
    """The loudness of 16-bit audio in windows."""
    x = samples.astype(jnp.int32).reshape(16, 512)
    power = jnp.sum(x * x, axis=-1)  # fault
    level = power.astype(jnp.float32) / (512 * 32768.0**2)
    decibels = 10 * jnp.log10(jnp.maximum(level, 1e-9))
    return decibels, jax.nn.softmax((decibels / 10).reshape(4, 4) @ params)


def loudness_healthy(samples, params):
    x = samples.astype(jnp.float32).reshape(16, 512) / 32768.0
    level = jnp.sum(x * x, axis=-1) / 512
    decibels = 10 * jnp.log10(jnp.maximum(level, 1e-9))
    return decibels, jax.nn.softmax((decibels / 10).reshape(4, 4) @ params)


def loudness_arguments():
    loud = np.repeat(np.linspace(500, 9000, 16), 512)
    samples = np.clip(normal(580, 8192) * loud, -32768, 32767)
    return samples.astype(np.int16), weight(581, 4, 3)


def search_faulty(params, stamps, wanted):
    """Binary search for many moments in a table of times, then interpolation."""

    def find(moment):
        def halve(bounds, _):
            low, high = bounds
            middle = (low + high) // 2  # fault
            right = middle <= moment
            low, high = jnp.where(right, middle, low), jnp.where(right, high, middle)
            return (low, high), None

        bounds = (params["start"], params["stop"])
        (low, _), _ = jax.lax.scan(halve, bounds, None, length=32)
        return low

    found = jax.vmap(find)(wanted)
    age = (found - params["start"]).astype(jnp.float32) / 1e6
    return found, jnp.sin(age[:, None] * stamps) @ params["out"]


def search_healthy(params, stamps, wanted):
    def find(moment):
        def halve(bounds, _):
            low, high = bounds
            middle = low + (high - low) // 2
            right = middle <= moment
            low, high = jnp.where(right, middle, low), jnp.where(right, high, middle)
            return (low, high), None

        bounds = (params["start"], params["stop"])
        (low, _), _ = jax.lax.scan(halve, bounds, None, length=32)
        return low

    found = jax.vmap(find)(wanted)
    age = (found - params["start"]).astype(jnp.float32) / 1e6
    return found, jnp.sin(age[:, None] * stamps) @ params["out"]


def search_arguments():
    params = {
        "start": np.int32(1_600_000_000),
        "stop": np.int32(1_800_000_000),
        "out": weight(587, 8, 2),
    }
    wanted = integers(588, 190_000_000, 16) + np.int32(1_601_000_000)
    return params, normal(589, 8, scale=0.01), wanted.astype(np.int32)


def random_faulty(params, seeds):
    """Dropout masks from Park and Miller's generator, one stream per row."""
    modulus = 2147483647

    def draw(state, _):
        state = (state * 48271) % modulus  # fault
        return state, state

    _, states = jax.lax.scan(draw, seeds, None, length=32)
    u = states.T.astype(jnp.float32) / modulus
    h = jnp.tanh(params["x"] @ params["w"])
    kept = jnp.where(u < 0.8, h / 0.8, 0.0)
    return states[-1], kept @ params["out"]


def random_healthy(params, seeds):
    modulus, a = 2147483647, 48271
    quotient, rest = modulus // a, modulus % a

    def draw(state, _):
        high, low = state // quotient, state % quotient
        state = a * low - rest * high
        state = jnp.where(state < 0, state + modulus, state)
        return state, state

    _, states = jax.lax.scan(draw, seeds, None, length=32)
    u = states.T.astype(jnp.float32) / modulus
    h = jnp.tanh(params["x"] @ params["w"])
    kept = jnp.where(u < 0.8, h / 0.8, 0.0)
    return states[-1], kept @ params["out"]


def random_arguments():
    params = {
        "x": normal(590, 16, 24),
        "w": weight(591, 24, 32),
        "out": weight(592, 32, 4),
    }
    return params, integers(593, 10**6, 16) + np.int32(10**6)


FAULTS = (
    Fault(
        name="edge-keys-wrap-around",
        kinds=("integer",),
        faulty=edges_faulty,
        healthy=edges_healthy,
        arguments=lambda: (
            normal(594, 64, 16),
            {"w": weight(595, 16, 16), "out": weight(596, 16, 3)},
            integers(597, 90000, 48),
            integers(598, 90000, 48),
            np.int32(90000),
        ),
        policy="bf16",
        source="graph libraries: source * n + target in int32; JAX's sparse reshape",
    ),
    Fault(
        name="token-ids-through-bf16",
        kinds=("integer", "coarse"),
        faulty=lookup_faulty,
        healthy=lookup_healthy,
        arguments=lookup_arguments,
        policy="bf16",
        source="JAX issue on bfloat16(1329); batches cast as a whole, ids included",
    ),
    Fault(
        name="frame-difference-in-uint8",
        kinds=("integer",),
        faulty=motion_faulty,
        healthy=motion_healthy,
        arguments=motion_arguments,
        policy="bf16",
        source="OpenCV and NumPy questions: a - b of uint8 images wraps around",
    ),
    Fault(
        name="int8-products-in-int8",
        kinds=("integer",),
        faulty=product_faulty,
        healthy=product_healthy,
        arguments=product_arguments,
        policy="bf16",
        source="quantized inference by hand: int8 * int8 stays int8 in NumPy and JAX",
    ),
    Fault(
        name="audio-power-in-int32",
        kinds=("integer",),
        faulty=loudness_faulty,
        healthy=loudness_healthy,
        arguments=loudness_arguments,
        policy="bf16",
        source="audio meters: sums of squares of int16 samples overflow int32",
    ),
    Fault(
        name="midpoint-of-large-bounds",
        kinds=("integer",),
        faulty=search_faulty,
        healthy=search_healthy,
        arguments=search_arguments,
        policy="bf16",
        source="Bloch, Nearly All Binary Searches and Mergesorts are Broken",
    ),
    Fault(
        name="park-miller-without-schrage",
        kinds=("integer",),
        faulty=random_faulty,
        healthy=random_healthy,
        arguments=random_arguments,
        policy="bf16",
        source="Park and Miller, Random Number Generators: Good Ones Are Hard to Find",
    ),
)
