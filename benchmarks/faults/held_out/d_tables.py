"""Counters, quantiles, data pipelines and codecs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import convolution, normal, uniform, weight


def visitors_faulty(registers, head):
    """HyperLogLog estimates of distinct visitors per page, of 64-bit hashes."""
    m = registers.shape[1]
    powers = jnp.int32(1) << registers  # fault
    total = jnp.sum(1.0 / powers.astype(jnp.float32), axis=1)
    count = 0.7213 / (1 + 1.079 / m) * m * (m / total)
    level = jnp.log10(jnp.maximum(count, 1.0))
    return level, jnp.tanh((level - 10.0)[:, None] @ head)


def visitors_healthy(registers, head):
    m = registers.shape[1]
    total = jnp.sum(jnp.exp2(-registers.astype(jnp.float32)), axis=1)
    count = 0.7213 / (1 + 1.079 / m) * m * (m / total)
    level = jnp.log10(jnp.maximum(count, 1.0))
    return level, jnp.tanh((level - 10.0)[:, None] @ head)


def visitors_arguments():
    rng = np.random.default_rng(9501)
    base = rng.uniform(24, 30, (12, 1))
    registers = np.floor(base + rng.gumbel(0.3, 1.4, (12, 64)))
    return np.clip(registers, 1, 50).astype(np.int32), weight(9502, 1, 4)


def latents_faulty(params, picture):
    """A learned codec that writes its latents as signed bytes."""
    h = jax.nn.gelu(convolution(picture, params["first"], 2))
    latents = convolution(h, params["second"], 2)
    symbols = jnp.clip(jnp.round(latents), -128, 127).astype(jnp.int8)  # fault
    decoded = symbols.astype(jnp.float32)
    return decoded, jax.nn.sigmoid(decoded @ params["decode"])


def latents_healthy(params, picture):
    h = jax.nn.gelu(convolution(picture, params["first"], 2))
    latents = convolution(h, params["second"], 2)
    symbols = jnp.clip(jnp.round(latents), -32768, 32767).astype(jnp.int16)
    decoded = symbols.astype(jnp.float32)
    return decoded, jax.nn.sigmoid(decoded @ params["decode"])


def latents_arguments():
    second = normal(9522, 3, 3, 8, 4, scale=0.8)
    second[..., 1] *= 60.0
    params = {
        "first": normal(9521, 3, 3, 3, 8, scale=0.6),
        "second": second,
        "decode": weight(9523, 4, 12, 0.02),
    }
    return params, uniform(9524, 1, 16, 16, 3)


def mixing_faulty(params, sizes, losses):
    """Sampling rates of corpora from their sizes to the power 0.3, in half."""
    count = sizes.astype(jnp.float16)  # fault
    flat = count**0.3
    share = (flat / jnp.sum(flat)).astype(jnp.float32)
    return share, jnp.sum(share * jnp.tanh(losses @ params["value"]))


def mixing_healthy(params, sizes, losses):
    logs = 0.3 * jnp.log(sizes.astype(jnp.float32))
    share = jax.nn.softmax(logs)
    return share, jnp.sum(share * jnp.tanh(losses @ params["value"]))


def mixing_arguments():
    sizes = np.int32([812_345, 4_100, 23_456_789, 61_002, 950, 310_000_111, 17, 70_500])
    return {"value": normal(9531, 5)}, sizes, normal(9532, 8, 5)


def night_faulty(params, picture):
    """Halves a night picture in linear light, which is kept in bytes."""
    code = picture.astype(jnp.float32) / 255.0
    curve = ((code + 0.055) / 1.055) ** 2.4
    light = jnp.where(code <= 0.04045, code / 12.92, curve)
    linear = jnp.round(255.0 * light).astype(jnp.uint8)  # fault
    rows = linear.astype(jnp.float32).reshape(12, 2, 16, 2)
    half = jnp.mean(rows, axis=(1, 3)) / 255.0
    bright = jnp.minimum(64.0 * half, 1.0)
    return bright, convolution(bright[None, ..., None], params["kernel"])[0]


def night_healthy(params, picture):
    code = picture.astype(jnp.float32) / 255.0
    curve = ((code + 0.055) / 1.055) ** 2.4
    light = jnp.where(code <= 0.04045, code / 12.92, curve)
    half = jnp.mean(light.reshape(12, 2, 16, 2), axis=(1, 3))
    bright = jnp.minimum(64.0 * half, 1.0)
    return bright, convolution(bright[None, ..., None], params["kernel"])[0]


def night_arguments():
    picture = np.random.default_rng(9541).integers(0, 7, (24, 32)).astype(np.uint8)
    return {"kernel": normal(9542, 3, 3, 1, 4, scale=0.3)}, picture


FAULTS = (
    Fault(
        name="d-distinct-counts-by-shifted-one",
        kinds=("integer",),
        faulty=visitors_faulty,
        healthy=visitors_healthy,
        arguments=visitors_arguments,
        policy="fp32",
        source="HyperLogLog ports: 1 << register overflows for 64-bit hashes",
    ),
    Fault(
        name="d-latents-of-a-codec-as-signed-bytes",
        kinds=("saturation",),
        faulty=latents_faulty,
        healthy=latents_healthy,
        arguments=latents_arguments,
        policy="bf16",
        source="learned-compression issues: latents beyond the symbols' range",
    ),
    Fault(
        name="d-corpus-sizes-in-half",
        kinds=("overflow", "non-finite"),
        faulty=mixing_faulty,
        healthy=mixing_healthy,
        arguments=mixing_arguments,
        policy="bf16",
        source="temperature sampling of multilingual corpora",
    ),
    Fault(
        name="d-linear-light-in-bytes",
        kinds=("uniform", "coarse", "underflow"),
        faulty=night_faulty,
        healthy=night_healthy,
        arguments=night_arguments,
        policy="bf16",
        source="image-resizing articles: linear light needs more than 8 bits",
    ),
)
