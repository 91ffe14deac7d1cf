"""Counters, quantiles, data pipelines and codecs."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import convolution


def visitors_arguments():
    rng = np.random.default_rng(9501)
    base = rng.uniform(24, 30, (12, 1))
    registers = np.floor(base + rng.gumbel(0.3, 1.4, (12, 64)))
    return np.clip(registers, 1, 50).astype(np.int32), "1x4 w @9502"


@fault("integer", policy="fp32")
@source("HyperLogLog ports: 1 << register overflows for 64-bit hashes")
@inputs(by=visitors_arguments)
def d_distinct_counts_by_shifted_one(registers, head):
    """HyperLogLog estimates of distinct visitors per page, of 64-bit hashes."""
    m = registers.shape[1]
    powers = jnp.int32(1) << registers  # fault
    total = jnp.sum(1.0 / powers.astype(jnp.float32), axis=1)  # -
    # + total = jnp.sum(jnp.exp2(-registers.astype(jnp.float32)), axis=1)
    count = 0.7213 / (1 + 1.079 / m) * m * (m / total)
    level = jnp.log10(jnp.maximum(count, 1.0))
    return level, jnp.tanh((level - 10.0)[:, None] @ head)


@fault("saturation")
@source("learned-compression issues: latents beyond the symbols' range")
@inputs(
    "first: 3x3x3x8 *0.6 @9521, second: 3x3x8x4 *0.8 [...,1]*=60, "
    "decode: 4x12 w*0.02; 1x16x16x3 0..1 @9524"
)
def d_latents_of_a_codec_as_signed_bytes(params, picture):
    """A learned codec that writes its latents as signed bytes."""
    h = jax.nn.gelu(convolution(picture, params["first"], 2))
    latents = convolution(h, params["second"], 2)
    symbols = jnp.clip(jnp.round(latents), -128, 127).astype(jnp.int8)  # fault
    # + symbols = jnp.clip(jnp.round(latents), -32768, 32767).astype(jnp.int16)
    decoded = symbols.astype(jnp.float32)
    return decoded, jax.nn.sigmoid(decoded @ params["decode"])


@fault("overflow", "non-finite")
@source("temperature sampling of multilingual corpora")
@inputs(
    "value: 5 @9531; i32 812345 4100 23456789 61002 950 310000111 17 70500; 8x5 @9532"
)
def d_corpus_sizes_in_half(params, sizes, losses):
    """Sampling rates of corpora from their sizes to the power 0.3, in half."""
    count = sizes.astype(jnp.float16)  # fault
    flat = count**0.3  # -
    share = (flat / jnp.sum(flat)).astype(jnp.float32)  # -
    # + logs = 0.3 * jnp.log(sizes.astype(jnp.float32))
    # + share = jax.nn.softmax(logs)
    return share, jnp.sum(share * jnp.tanh(losses @ params["value"]))


@fault("uniform", "coarse", "underflow")
@source("image-resizing articles: linear light needs more than 8 bits")
@inputs(
    "kernel: 3x3x1x4 *0.3 @9542",
    lambda: np.random.default_rng(9541).integers(0, 7, (24, 32)).astype(np.uint8),
)
def d_linear_light_in_bytes(params, picture):
    """Halves a night picture in linear light, which is kept in bytes."""
    code = picture.astype(jnp.float32) / 255.0
    curve = ((code + 0.055) / 1.055) ** 2.4
    light = jnp.where(code <= 0.04045, code / 12.92, curve)
    linear = jnp.round(255.0 * light).astype(jnp.uint8)  # fault
    rows = linear.astype(jnp.float32).reshape(12, 2, 16, 2)  # -
    half = jnp.mean(rows, axis=(1, 3)) / 255.0  # -
    # + half = jnp.mean(light.reshape(12, 2, 16, 2), axis=(1, 3))
    bright = jnp.minimum(64.0 * half, 1.0)
    return bright, convolution(bright[None, ..., None], params["kernel"])[0]
