"""Normalization layers, running statistics and residual streams."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import (
    block,
    causal_attention,
    conv,
    feed_forward,
    layer_norm,
)
from benchmarks.faults.parts import normal


@fault("cancellation")
@source("neural-network libraries: the fast variance option is wrong for a large mean")
@inputs(
    "block 32x48 @300",
    lambda: (np.round(normal(301, 20, 32, scale=0.06) * 1024) / 1024).astype(
        np.float32
    ),
    "f32 512",
)
def layer_norm_fast_variance(p, sensors, lift):
    """A block over sensor readings with a large offset; the variance takes one pass."""
    x = sensors + lift
    mean = jnp.mean(x, axis=-1, keepdims=True)
    square = jnp.mean(x * x, axis=-1, keepdims=True)  # -
    var = jnp.maximum(square - mean * mean, 0.0)  # fault
    # + centred = x - mean
    # + var = jnp.mean(centred * centred, axis=-1, keepdims=True)
    h = (x - mean) * jax.lax.rsqrt(var + 1e-6) * p["g1"] + p["b1"]  # -
    # + h = centred * jax.lax.rsqrt(var + 1e-6) * p["g1"] + p["b1"]
    h = h + causal_attention(p, h)
    return h + feed_forward(p, h)


def rms_norm_arguments():
    x = normal(311, 16, 32)
    x[0, 5], x[0, 19], x[7, 5] = 900.0, -420.0, 610.0
    return "block 32x64 @310", x


@fault("overflow")
@source("T5-like models in FP16: activations above 256 square to infinity")
@inputs(by=rms_norm_arguments)
def rms_norm_squares_in_half(p, x):
    """RMS norm of an FP16 residual stream that has massive activations."""
    x = (x + 0.1 * feed_forward(p, x)).astype(jnp.float16)
    square = jnp.square(x)  # fault
    # + square = jnp.square(x.astype(jnp.float32))
    power = jnp.mean(square.astype(jnp.float32), axis=-1, keepdims=True)  # -
    # + power = jnp.mean(square, axis=-1, keepdims=True)
    h = x.astype(jnp.float32) * jax.lax.rsqrt(power + 1e-5) * p["g1"]
    out = x.astype(jnp.float32) + causal_attention(p, h)
    return h, layer_norm(out, p["g2"], p["b2"])


def epsilon_arguments():
    table = normal(321, 40, 32, scale=0.5)
    table[0] = 0
    tokens = np.random.default_rng(322).integers(1, 40, 16).astype(np.int32)
    tokens[12:] = 0
    return "block 32x48 @320", tokens, table


@fault("underflow", "singular", "non-finite")
@source("BERT in FP16: an epsilon of 1e-12 is zero there, constant rows give NaN")
@inputs(by=epsilon_arguments)
def half_layer_norm_tiny_epsilon(p, tokens, table):
    """BERT's embedding layer in FP16 with the epsilon of its FP32 checkpoint."""
    x = table[tokens].astype(jnp.float16)
    mean = jnp.mean(x, axis=-1, keepdims=True)
    centred = x - mean  # -
    # + centred = (x - mean).astype(jnp.float32)
    var = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    scale = jax.lax.rsqrt(var + 1e-12)  # here
    h = (centred * scale).astype(jnp.float32) * p["g1"] + p["b1"]  # -
    # + h = centred * scale * p["g1"] + p["b1"]
    h = block(p, h)
    return h.mean(axis=0)


@fault("absorption", "stagnation")
@source("reports that running statistics freeze when the model is cast to BF16")
@inputs("3x3x2x4 *0.2 @330; 120x4x6x6x2 +0.3 @331; 4 0.9..1.6 @332; 4 =1")
def batch_norm_running_mean_bf16(kernel, batches, mean, var):
    """Running statistics of a batch norm after a convolution, kept in BF16."""

    def step(state, images):
        mean, var = state
        h = jax.nn.relu(conv(images, kernel))
        batch_mean = jnp.mean(h, axis=(0, 1, 2))
        batch_var = jnp.var(h, axis=(0, 1, 2))
        gap = batch_mean - mean.astype(jnp.float32)  # -
        mean = mean + (0.01 * gap).astype(jnp.bfloat16)  # fault
        # + mean = mean + 0.01 * (batch_mean - mean)
        var = var + 0.01 * (batch_var - var)
        return (mean, var), None

    state = (mean.astype(jnp.bfloat16), var)  # -
    (mean, var), _ = jax.lax.scan(step, state, batches)  # -
    # + (mean, var), _ = jax.lax.scan(step, (mean, var), batches)
    h = jax.nn.relu(conv(batches[0], kernel))
    scale = jax.lax.rsqrt(var + 1e-3)
    return (h - mean.astype(jnp.float32)) * scale, mean.astype(jnp.float32)  # -
    # + return (h - mean) * scale, mean


@fault("absorption", "stagnation")
@source("deep vision transformers: small residual branches vanish in a BF16 stream")
@inputs(
    {
        "gain": np.ones((60, 16), np.float32),
        "bias": np.zeros((60, 16), np.float32),
        "up": lambda: (
            normal(340, 1, 16, 32, scale=0.25) + normal(343, 60, 16, 32) * 0.1
        ),
        "down": lambda: (
            normal(341, 60, 32, 16, scale=0.2) * 0.3 + normal(342, 32, 16) * 0.2
        ).astype(np.float32),
    },
    lambda: np.asarray(
        jnp.asarray(normal(344, 12, 16) + 1.5).astype(jnp.bfloat16)
    ).astype(np.float32),
    lambda: normal(345, 16, 4),
)
def layer_scale_on_bf16_stream(layers, x, head):
    """A deep network with small LayerScale gains on a BF16 residual stream."""

    def layer(h, p):
        inner = layer_norm(h.astype(jnp.float32), p["gain"], p["bias"])  # -
        # + inner = layer_norm(h, p["gain"], p["bias"])
        branch = jax.nn.gelu(inner @ p["up"]) @ p["down"]
        h = h + (2e-3 * branch).astype(jnp.bfloat16)  # fault
        # + h = h + 2e-3 * branch
        return h, None

    h, _ = jax.lax.scan(layer, x.astype(jnp.bfloat16), layers)  # -
    # + h, _ = jax.lax.scan(layer, x, layers)
    pooled = jnp.mean(h.astype(jnp.float32) - x, axis=0)  # -
    # + pooled = jnp.mean(h - x, axis=0)
    return h.astype(jnp.float32), pooled @ head  # -
    # + return h, pooled @ head
