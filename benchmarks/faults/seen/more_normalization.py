"""Normalization layers, running statistics and residual streams."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.common import (
    block,
    block_params,
    causal_attention,
    conv,
    feed_forward,
    layer_norm,
    normal,
    uniform,
)


def layer_norm_one_pass(p, sensors, lift):
    """A block over sensor readings with a large offset; the variance takes one pass."""
    x = sensors + lift
    mean = jnp.mean(x, axis=-1, keepdims=True)
    square = jnp.mean(x * x, axis=-1, keepdims=True)
    var = jnp.maximum(square - mean * mean, 0.0)  # fault
    h = (x - mean) * jax.lax.rsqrt(var + 1e-6) * p["g1"] + p["b1"]
    h = h + causal_attention(p, h)
    return h + feed_forward(p, h)


def layer_norm_two_pass(p, sensors, lift):
    x = sensors + lift
    mean = jnp.mean(x, axis=-1, keepdims=True)
    centred = x - mean
    var = jnp.mean(centred * centred, axis=-1, keepdims=True)
    h = centred * jax.lax.rsqrt(var + 1e-6) * p["g1"] + p["b1"]
    h = h + causal_attention(p, h)
    return h + feed_forward(p, h)


def layer_norm_arguments():
    p = block_params(300, 32, 48)
    sensors = np.round(normal(301, 20, 32, scale=0.06) * 1024) / 1024
    return p, sensors.astype(np.float32), np.float32(512)


def rms_norm_half(p, x):
    """RMS norm of an FP16 residual stream that has massive activations."""
    x = (x + 0.1 * feed_forward(p, x)).astype(jnp.float16)
    square = jnp.square(x)  # fault
    power = jnp.mean(square.astype(jnp.float32), axis=-1, keepdims=True)
    h = x.astype(jnp.float32) * jax.lax.rsqrt(power + 1e-5) * p["g1"]
    out = x.astype(jnp.float32) + causal_attention(p, h)
    return h, layer_norm(out, p["g2"], p["b2"])


def rms_norm_wide(p, x):
    x = (x + 0.1 * feed_forward(p, x)).astype(jnp.float16)
    square = jnp.square(x.astype(jnp.float32))
    power = jnp.mean(square, axis=-1, keepdims=True)
    h = x.astype(jnp.float32) * jax.lax.rsqrt(power + 1e-5) * p["g1"]
    out = x.astype(jnp.float32) + causal_attention(p, h)
    return h, layer_norm(out, p["g2"], p["b2"])


def rms_norm_arguments():
    x = normal(311, 16, 32)
    x[0, 5], x[0, 19], x[7, 5] = 900.0, -420.0, 610.0
    return block_params(310, 32, 64), x


def half_epsilon(p, tokens, table):
    """BERT's embedding layer in FP16 with the epsilon of its FP32 checkpoint."""
    x = table[tokens].astype(jnp.float16)
    mean = jnp.mean(x, axis=-1, keepdims=True)
    centred = x - mean
    var = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    scale = jax.lax.rsqrt(var + 1e-12)  # fault
    h = (centred * scale).astype(jnp.float32) * p["g1"] + p["b1"]
    h = block(p, h)
    return h.mean(axis=0)


def fp32_epsilon(p, tokens, table):
    x = table[tokens].astype(jnp.float16)
    mean = jnp.mean(x, axis=-1, keepdims=True)
    centred = (x - mean).astype(jnp.float32)
    var = jnp.mean(jnp.square(centred), axis=-1, keepdims=True)
    scale = jax.lax.rsqrt(var + 1e-12)
    h = centred * scale * p["g1"] + p["b1"]
    h = block(p, h)
    return h.mean(axis=0)


def epsilon_arguments():
    table = normal(321, 40, 32, scale=0.5)
    table[0] = 0
    tokens = np.random.default_rng(322).integers(1, 40, 16).astype(np.int32)
    tokens[12:] = 0
    return block_params(320, 32, 48), tokens, table


def running_mean_bf16(kernel, batches, mean, var):
    """Running statistics of a batch norm after a convolution, kept in BF16."""

    def step(state, images):
        mean, var = state
        h = jax.nn.relu(conv(images, kernel))
        batch_mean = jnp.mean(h, axis=(0, 1, 2))
        batch_var = jnp.var(h, axis=(0, 1, 2))
        gap = batch_mean - mean.astype(jnp.float32)
        mean = mean + (0.01 * gap).astype(jnp.bfloat16)  # fault
        var = var + 0.01 * (batch_var - var)
        return (mean, var), None

    state = (mean.astype(jnp.bfloat16), var)
    (mean, var), _ = jax.lax.scan(step, state, batches)
    h = jax.nn.relu(conv(batches[0], kernel))
    scale = jax.lax.rsqrt(var + 1e-3)
    return (h - mean.astype(jnp.float32)) * scale, mean.astype(jnp.float32)


def running_mean_fp32(kernel, batches, mean, var):
    def step(state, images):
        mean, var = state
        h = jax.nn.relu(conv(images, kernel))
        batch_mean = jnp.mean(h, axis=(0, 1, 2))
        batch_var = jnp.var(h, axis=(0, 1, 2))
        mean = mean + 0.01 * (batch_mean - mean)
        var = var + 0.01 * (batch_var - var)
        return (mean, var), None

    (mean, var), _ = jax.lax.scan(step, (mean, var), batches)
    h = jax.nn.relu(conv(batches[0], kernel))
    scale = jax.lax.rsqrt(var + 1e-3)
    return (h - mean) * scale, mean


def running_mean_arguments():
    kernel = normal(330, 3, 3, 2, 4, scale=0.2)
    batches = normal(331, 120, 4, 6, 6, 2, shift=0.3)
    mean = uniform(332, 0.9, 1.6, 4)
    return kernel, batches, mean, np.ones(4, np.float32)


def layer_scale_bf16_stream(layers, x, head):
    """A deep network with small LayerScale gains on a BF16 residual stream."""

    def layer(h, p):
        inner = layer_norm(h.astype(jnp.float32), p["gain"], p["bias"])
        branch = jax.nn.gelu(inner @ p["up"]) @ p["down"]
        h = h + (2e-3 * branch).astype(jnp.bfloat16)  # fault
        return h, None

    h, _ = jax.lax.scan(layer, x.astype(jnp.bfloat16), layers)
    pooled = jnp.mean(h.astype(jnp.float32) - x, axis=0)
    return h.astype(jnp.float32), pooled @ head


def layer_scale_fp32_stream(layers, x, head):
    def layer(h, p):
        inner = layer_norm(h, p["gain"], p["bias"])
        branch = jax.nn.gelu(inner @ p["up"]) @ p["down"]
        h = h + 2e-3 * branch
        return h, None

    h, _ = jax.lax.scan(layer, x, layers)
    pooled = jnp.mean(h - x, axis=0)
    return h, pooled @ head


def layer_scale_arguments():
    depth, width = 60, 16
    down = normal(341, depth, 32, width, scale=0.2) * 0.3 + normal(342, 32, width) * 0.2
    layers = {
        "gain": np.ones((depth, width), np.float32),
        "bias": np.zeros((depth, width), np.float32),
        "up": normal(340, 1, width, 32, scale=0.25)
        + normal(343, depth, width, 32) * 0.1,
        "down": down.astype(np.float32),
    }
    x = np.asarray(jnp.asarray(normal(344, 12, width) + 1.5).astype(jnp.bfloat16))
    return layers, x.astype(np.float32), normal(345, width, 4)


FAULTS = (
    Fault(
        name="layer-norm-fast-variance",
        kinds=("cancellation",),
        faulty=layer_norm_one_pass,
        healthy=layer_norm_two_pass,
        arguments=layer_norm_arguments,
        policy="bf16",
        source=(
            "neural-network libraries: the fast variance option is wrong for a "
            "large mean"
        ),
    ),
    Fault(
        name="rms-norm-squares-in-half",
        kinds=("overflow",),
        faulty=rms_norm_half,
        healthy=rms_norm_wide,
        arguments=rms_norm_arguments,
        policy="bf16",
        source="T5-like models in FP16: activations above 256 square to infinity",
    ),
    Fault(
        name="half-layer-norm-tiny-epsilon",
        kinds=("underflow", "singular", "non-finite"),
        faulty=half_epsilon,
        healthy=fp32_epsilon,
        arguments=epsilon_arguments,
        policy="bf16",
        source=(
            "BERT in FP16: an epsilon of 1e-12 is zero there, constant rows give NaN"
        ),
    ),
    Fault(
        name="batch-norm-running-mean-bf16",
        kinds=("absorption", "stagnation"),
        faulty=running_mean_bf16,
        healthy=running_mean_fp32,
        arguments=running_mean_arguments,
        policy="bf16",
        source="reports that running statistics freeze when the model is cast to BF16",
    ),
    Fault(
        name="layer-scale-on-bf16-stream",
        kinds=("absorption", "stagnation"),
        faulty=layer_scale_bf16_stream,
        healthy=layer_scale_fp32_stream,
        arguments=layer_scale_arguments,
        policy="bf16",
        source=(
            "deep vision transformers: small residual branches vanish in a BF16 stream"
        ),
    ),
)
