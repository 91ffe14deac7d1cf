"""Faults where a program quantizes by itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import (
    block,
    block_params,
    layer_norm,
    normal,
    uniform,
    weight,
)


def calibrated_faulty(params, x):
    """Static quantization of activations: the scale is last year's."""
    h = jax.nn.relu(layer_norm(x) @ params["up"])
    scaled = jnp.clip(h * params["scale"], -240.0, 240.0)  # fault
    h8 = scaled.astype(jnp.float8_e4m3)
    h = h8.astype(jnp.float32) / params["scale"]
    return x + h @ params["down"]


def calibrated_healthy(params, x):
    h = jax.nn.relu(layer_norm(x) @ params["up"])
    scale = 240.0 / jnp.max(jnp.abs(h))
    scaled = jnp.clip(h * scale, -240.0, 240.0)
    h8 = scaled.astype(jnp.float8_e4m3)
    h = h8.astype(jnp.float32) / scale
    return x + h @ params["down"]


def calibrated_arguments():
    params = {
        "up": weight(495, 32, 64, 6.0),
        "down": weight(496, 64, 32),
        "scale": np.float32(240.0),
    }
    return params, normal(497, 16, 32)


def spike_faulty(params, batches):
    """Training with delayed scaling over four steps, when a spike comes."""

    def loss_of(w, x, scale):
        h = jnp.tanh(x @ w["in"]) * jnp.max(jnp.abs(x))
        h8 = (h * scale).astype(jnp.float8_e4m3)  # fault
        h = h8.astype(jnp.float32) / scale
        return jnp.mean((h @ w["out"] - 1.0) ** 2), jnp.max(jnp.abs(h))

    def step(carry, x):
        w, history = carry
        scale = 200.0 / history.max()
        (loss, top), grads = jax.value_and_grad(loss_of, has_aux=True)(w, x, scale)
        w = jax.tree.map(lambda p, g: p - 0.001 * g, w, grads)
        return (w, jnp.append(history[1:], top)), loss

    (w, _), losses = jax.lax.scan(step, (params, jnp.ones(4)), batches)
    return w, losses


def spike_healthy(params, batches):
    def loss_of(w, x, history):
        h = jnp.tanh(x @ w["in"]) * jnp.max(jnp.abs(x))
        top = jax.lax.stop_gradient(jnp.max(jnp.abs(h)))
        scale = 200.0 / jnp.maximum(history.max(), top)
        h8 = (h * scale).astype(jnp.float8_e4m3)
        h = h8.astype(jnp.float32) / scale
        return jnp.mean((h @ w["out"] - 1.0) ** 2), top

    def step(carry, x):
        w, history = carry
        (loss, top), grads = jax.value_and_grad(loss_of, has_aux=True)(w, x, history)
        w = jax.tree.map(lambda p, g: p - 0.001 * g, w, grads)
        return (w, jnp.append(history[1:], top)), loss

    (w, _), losses = jax.lax.scan(step, (params, jnp.ones(4)), batches)
    return w, losses


def spike_arguments():
    batches = uniform(498, 12, 8, 16, low=-1.0, high=1.0)
    batches[7] *= 5.0
    return {"in": weight(499, 16, 16), "out": weight(500, 16, 2)}, batches


def empty_faulty(params, x, expert):
    """Experts get their tokens quantized per row; an expert may have none."""
    mine = jax.nn.one_hot(expert, 4).T[:, :, None] * layer_norm(x)
    top = jnp.max(jnp.abs(mine), axis=-1, keepdims=True)
    rows = mine / (top / 240.0)  # fault
    rows = rows.astype(jnp.float8_e4m3).astype(jnp.float32) * (top / 240.0)
    out = jnp.einsum("etd,edf->etf", rows, params["experts"])
    return jax.nn.gelu(out.sum(0)) @ params["out"]


def empty_healthy(params, x, expert):
    mine = jax.nn.one_hot(expert, 4).T[:, :, None] * layer_norm(x)
    top = jnp.max(jnp.abs(mine), axis=-1, keepdims=True)
    top = jnp.maximum(top, 1e-6)
    rows = mine / (top / 240.0)
    rows = rows.astype(jnp.float8_e4m3).astype(jnp.float32) * (top / 240.0)
    out = jnp.einsum("etd,edf->etf", rows, params["experts"])
    return jax.nn.gelu(out.sum(0)) @ params["out"]


def floor_faulty(params, x):
    """A low-rank branch in FP8, whose scale is kept between 1/16 and 16."""
    low = (layer_norm(x) @ params["down"]) * 5e-5
    ideal = 240.0 / jnp.max(jnp.abs(low))
    scale = jnp.clip(ideal, 1 / 16, 16.0)  # fault
    low8 = (low * scale).astype(jnp.float8_e4m3)
    branch = (low8.astype(jnp.float32) / scale) @ params["up"]
    return block(params["body"], layer_norm(x)), branch


def floor_healthy(params, x):
    low = (layer_norm(x) @ params["down"]) * 5e-5
    ideal = 240.0 / jnp.max(jnp.abs(low))
    scale = jnp.clip(ideal, 1e-10, 1e10)
    low8 = (low * scale).astype(jnp.float8_e4m3)
    branch = (low8.astype(jnp.float32) / scale) @ params["up"]
    return block(params["body"], layer_norm(x)), branch


def double_faulty(params, x):
    """Weights of 4 bits in blocks; the scales of the blocks are FP8 themselves."""
    w = params["w"].reshape(16, -1, 32)
    scales = jnp.max(jnp.abs(w), axis=-1, keepdims=True) / 7.0
    small = scales.astype(jnp.float8_e4m3)  # fault
    codes = jnp.round(w / scales)
    back = (codes * small.astype(jnp.float32)).reshape(params["w"].shape)
    h = jnp.tanh(layer_norm(x) @ params["in"])
    return layer_norm(h @ back) @ params["out"]


def double_healthy(params, x):
    w = params["w"].reshape(16, -1, 32)
    scales = jnp.max(jnp.abs(w), axis=-1, keepdims=True) / 7.0
    whole = 240.0 / jnp.max(scales)
    small = (scales * whole).astype(jnp.float8_e4m3)
    codes = jnp.round(w / scales)
    back = (codes * small.astype(jnp.float32) / whole).reshape(params["w"].shape)
    h = jnp.tanh(layer_norm(x) @ params["in"])
    return layer_norm(h @ back) @ params["out"]


def double_arguments():
    params = {
        "in": weight(504, 16, 32),
        "w": normal(505, 32, 64, scale=0.002),
        "out": weight(506, 64, 4),
    }
    return params, normal(507, 16, 16)


def spread_faulty(params, q, keys, values):
    """Attention over a thousand keys, with the probabilities in FP8."""
    scores = (q @ params["q"] / 4.0) @ keys.T
    probs = jax.nn.softmax(scores)
    p8 = probs.astype(jnp.float8_e4m3)  # fault
    read = p8.astype(jnp.float32) @ values
    return read @ params["o"]


def spread_healthy(params, q, keys, values):
    scores = (q @ params["q"] / 4.0) @ keys.T
    probs = jax.nn.softmax(scores)
    size = 240.0 / jnp.max(probs, axis=-1, keepdims=True)
    p8 = (probs * size).astype(jnp.float8_e4m3)
    read = (p8.astype(jnp.float32) @ values) / size
    return read @ params["o"]


def spread_arguments():
    params = {"q": weight(517, 8, 8, 0.7), "o": weight(518, 8, 4)}
    return params, normal(519, 6, 8), normal(520, 1024, 8), normal(521, 1024, 8) + 1


def momentum_faulty(params, x, y):
    """Heavy-ball SGD whose momentum is stored in FP8 with one scale."""

    def loss_of(w, x, y):
        return jnp.mean((jnp.tanh(x @ params["in"]) @ w - y) ** 2)

    def step(carry, batch):
        w, m8 = carry
        g = jax.grad(loss_of)(w, *batch)
        m = m8.astype(jnp.float32) / 64.0
        m = m + 0.02 * (g - m)
        m8 = (m * 64.0).astype(jnp.float8_e4m3)  # fault
        return (w - 0.05 * m8.astype(jnp.float32) / 64.0, m8), None

    start = (params["w"], jnp.zeros(params["w"].shape, jnp.float8_e4m3))
    (w, m8), _ = jax.lax.scan(step, start, (x, y))
    return w, m8.astype(jnp.float32) / 64.0


def momentum_healthy(params, x, y):
    def loss_of(w, x, y):
        return jnp.mean((jnp.tanh(x @ params["in"]) @ w - y) ** 2)

    def step(carry, batch):
        w, m = carry
        g = jax.grad(loss_of)(w, *batch)
        m = m + 0.02 * (g - m)
        return (w - 0.05 * m, m), None

    start = (params["w"], jnp.zeros(params["w"].shape))
    (w, m), _ = jax.lax.scan(step, start, (x, y))
    return w, m


def momentum_arguments():
    x = normal(522, 150, 16, 12)
    params = {"in": weight(523, 12, 24), "w": weight(524, 24, 3)}
    return params, x, np.tanh(x @ weight(525, 12, 3)) + np.float32(1)


def depthwise_faulty(params, images):
    """A depthwise layer in int8 with one scale; the channels' ranges differ."""
    w = params["depthwise"]
    scale = jnp.max(jnp.abs(w)) / 127.0
    codes = jnp.round(w / scale)  # fault
    w = codes.astype(jnp.int8).astype(jnp.float32) * scale
    x = jax.nn.relu(images @ params["expand"])
    pieces = [
        x[:, i : i + 12, j : j + 12] * w[i, j] for i in range(3) for j in range(3)
    ]
    x = sum(pieces) * params["gain"]
    return jax.nn.relu(x).mean((1, 2)) @ params["head"]


def depthwise_healthy(params, images):
    w = params["depthwise"]
    scale = jnp.max(jnp.abs(w), axis=(0, 1)) / 127.0
    codes = jnp.round(w / scale)
    w = codes.astype(jnp.int8).astype(jnp.float32) * scale
    x = jax.nn.relu(images @ params["expand"])
    pieces = [
        x[:, i : i + 12, j : j + 12] * w[i, j] for i in range(3) for j in range(3)
    ]
    x = sum(pieces) * params["gain"]
    return jax.nn.relu(x).mean((1, 2)) @ params["head"]


def depthwise_arguments():
    size = np.geomspace(1e-3, 1.0, 16).astype(np.float32)
    params = {
        "expand": weight(526, 3, 16),
        "depthwise": normal(527, 3, 3, 16) * size,
        "gain": 1 / size,  # batch norm, folded
        "head": weight(528, 16, 5),
    }
    return params, normal(529, 4, 14, 14, 3)


FAULTS = (
    Fault(
        name="static-scale-of-old-calibration",
        kinds=("stale-scale", "saturation"),
        faulty=calibrated_faulty,
        healthy=calibrated_healthy,
        arguments=calibrated_arguments,
        policy="bf16",
        source="static FP8 checkpoints: activations outgrow the calibrated range",
    ),
    Fault(
        name="delayed-scale-meets-spike",
        kinds=("stale-scale", "overflow", "saturation"),
        faulty=spike_faulty,
        healthy=spike_healthy,
        arguments=spike_arguments,
        policy="bf16",
        source="Transformer Engine: delayed scaling and a sudden amax",
    ),
    Fault(
        name="scale-of-expert-without-tokens",
        kinds=("non-finite", "saturation", "singular"),
        faulty=empty_faulty,
        healthy=empty_healthy,
        arguments=lambda: (
            {
                "experts": normal(501, 4, 16, 24, scale=0.25),
                "out": weight(502, 24, 4),
            },
            normal(503, 12, 16),
            np.array([0, 1, 3, 3, 1, 0, 0, 1, 3, 3, 0, 1], np.int32),
        ),
        policy="bf16",
        source="torchao issue: float8 scale of an all-zero block is zero, 0/0",
    ),
    Fault(
        name="clipped-scale-of-low-rank-branch",
        kinds=("saturation", "underflow"),
        faulty=floor_faulty,
        healthy=floor_healthy,
        arguments=lambda: (
            {
                "body": block_params(538, 32),
                "down": weight(548, 32, 8),
                "up": weight(549, 8, 32, 6000.0),
            },
            normal(550, 16, 32),
        ),
        policy="bf16",
        source="FP8 recipes that bound the scale: small tensors stay small",
    ),
    Fault(
        name="fp8-scales-of-4-bit-blocks",
        kinds=("underflow",),
        faulty=double_faulty,
        healthy=double_healthy,
        arguments=double_arguments,
        policy="bf16",
        source="NVFP4 and QLoRA: block scales need a second scale of their own",
    ),
    Fault(
        name="fp8-probabilities-of-long-context",
        kinds=("underflow",),
        faulty=spread_faulty,
        healthy=spread_healthy,
        arguments=spread_arguments,
        policy="bf16",
        source="FlashAttention-3 and KV quantization: softmax weights below E4M3",
    ),
    Fault(
        name="fp8-momentum-stalls",
        kinds=("absorption", "coarse", "stagnation"),
        faulty=momentum_faulty,
        healthy=momentum_healthy,
        arguments=momentum_arguments,
        policy="bf16",
        source="8-bit optimizers: a slow average in a format of 3 mantissa bits",
    ),
    Fault(
        name="int8-scale-shared-by-channels",
        kinds=("coarse", "underflow"),
        faulty=depthwise_faulty,
        healthy=depthwise_healthy,
        arguments=depthwise_arguments,
        policy="bf16",
        source="Nagel et al., Data-Free Quantization: per-tensor scales and MobileNet",
    ),
)
