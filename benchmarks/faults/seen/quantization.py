"""Faults where a program quantizes by itself."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import block, layer_norm, normal, uniform, weight


@fault("stale-scale", "saturation")
@source("static FP8 checkpoints: activations outgrow the calibrated range")
@inputs("up: 32x64 w*6 @495, down: 64x32 w, scale: f32 240; 16x32 @497")
def static_scale_of_old_calibration(params, x):
    """Static quantization of activations: the scale is last year's."""
    h = jax.nn.relu(layer_norm(x) @ params["up"])
    scaled = jnp.clip(h * params["scale"], -240.0, 240.0)  # fault
    # + scale = 240.0 / jnp.max(jnp.abs(h))
    # + scaled = jnp.clip(h * scale, -240.0, 240.0)
    h8 = scaled.astype(jnp.float8_e4m3)
    h = h8.astype(jnp.float32) / params["scale"]  # -
    # + h = h8.astype(jnp.float32) / scale
    return x + h @ params["down"]


def spike_arguments():
    batches = uniform(498, 12, 8, 16, low=-1.0, high=1.0)
    batches[7] *= 5.0
    return "in: 16x16 w @499, out: 16x2 w", batches


@fault("stale-scale", "overflow", "saturation")
@source("Transformer Engine: delayed scaling and a sudden amax")
@inputs(by=spike_arguments)
def delayed_scale_meets_spike(params, batches):
    """Training with delayed scaling over four steps, when a spike comes."""

    def loss_of(w, x, scale):  # -
        h = jnp.tanh(x @ w["in"]) * jnp.max(jnp.abs(x))
        h8 = (h * scale).astype(jnp.float8_e4m3)  # fault
        h = h8.astype(jnp.float32) / scale
        return jnp.mean((h @ w["out"] - 1.0) ** 2), jnp.max(jnp.abs(h))

    # + def loss_of(w, x, history):
    # +     h = jnp.tanh(x @ w["in"]) * jnp.max(jnp.abs(x))
    # +     top = jax.lax.stop_gradient(jnp.max(jnp.abs(h)))
    # +     scale = 200.0 / jnp.maximum(history.max(), top)
    # +     h8 = (h * scale).astype(jnp.float8_e4m3)
    # +     h = h8.astype(jnp.float32) / scale
    # +     return jnp.mean((h @ w["out"] - 1.0) ** 2), top

    def step(carry, x):
        w, history = carry
        scale = 200.0 / history.max()  # -
        (loss, top), grads = jax.value_and_grad(loss_of, has_aux=True)(w, x, scale)  # -
        # + (loss, top), grads = jax.value_and_grad(loss_of, has_aux=True)(
        # +     w, x, history
        # + )
        w = jax.tree.map(lambda p, g: p - 0.001 * g, w, grads)
        return (w, jnp.append(history[1:], top)), loss

    (w, _), losses = jax.lax.scan(step, (params, jnp.ones(4)), batches)
    return w, losses


@fault("non-finite", "saturation", "singular")
@source("torchao issue: float8 scale of an all-zero block is zero, 0/0")
@inputs(
    "experts: 4x16x24 *0.25 @501, out: 24x4 w; 12x16 @503; i32 0 1 3 3 1 0 0 1 3 3 0 1"
)
def scale_of_expert_without_tokens(params, x, expert):
    """Experts get their tokens quantized per row; an expert may have none."""
    mine = jax.nn.one_hot(expert, 4).T[:, :, None] * layer_norm(x)
    top = jnp.max(jnp.abs(mine), axis=-1, keepdims=True)
    # + top = jnp.maximum(top, 1e-6)
    rows = mine / (top / 240.0)  # here
    rows = rows.astype(jnp.float8_e4m3).astype(jnp.float32) * (top / 240.0)
    out = jnp.einsum("etd,edf->etf", rows, params["experts"])
    return jax.nn.gelu(out.sum(0)) @ params["out"]


@fault("saturation", "underflow")
@source("FP8 recipes that bound the scale: small tensors stay small")
@inputs("body: block 32 @538, down: 32x8 w @548, up: 8x32 w*6000; 16x32 @550")
def clipped_scale_of_low_rank_branch(params, x):
    """A low-rank branch in FP8, whose scale is kept between 1/16 and 16."""
    low = (layer_norm(x) @ params["down"]) * 5e-5
    ideal = 240.0 / jnp.max(jnp.abs(low))
    scale = jnp.clip(ideal, 1 / 16, 16.0)  # fault
    # + scale = jnp.clip(ideal, 1e-10, 1e10)
    low8 = (low * scale).astype(jnp.float8_e4m3)
    branch = (low8.astype(jnp.float32) / scale) @ params["up"]
    return block(params["body"], layer_norm(x)), branch


@fault("underflow")
@source("NVFP4 and QLoRA: block scales need a second scale of their own")
@inputs("in: 16x32 w @504, w: 32x64 *0.002, out: 64x4 w; 16x16 @507")
def fp8_scales_of_4_bit_blocks(params, x):
    """Weights of 4 bits in blocks; the scales of the blocks are FP8 themselves."""
    w = params["w"].reshape(16, -1, 32)
    scales = jnp.max(jnp.abs(w), axis=-1, keepdims=True) / 7.0
    small = scales.astype(jnp.float8_e4m3)  # fault
    # + whole = 240.0 / jnp.max(scales)
    # + small = (scales * whole).astype(jnp.float8_e4m3)
    codes = jnp.round(w / scales)
    back = (codes * small.astype(jnp.float32)).reshape(params["w"].shape)  # -
    # + back = (codes * small.astype(jnp.float32) / whole).reshape(params["w"].shape)
    h = jnp.tanh(layer_norm(x) @ params["in"])
    return layer_norm(h @ back) @ params["out"]


@fault("underflow")
@source("FlashAttention-3 and KV quantization: softmax weights below E4M3")
@inputs(
    "q: 8x8 w*0.7 @517, o: 8x4 w; 6x8 @519; 1024x8 @520",
    lambda: normal(521, 1024, 8) + 1,
)
def fp8_probabilities_of_long_context(params, q, keys, values):
    """Attention over a thousand keys, with the probabilities in FP8."""
    scores = (q @ params["q"] / 4.0) @ keys.T
    probs = jax.nn.softmax(scores)
    p8 = probs.astype(jnp.float8_e4m3)  # fault
    # + size = 240.0 / jnp.max(probs, axis=-1, keepdims=True)
    # + p8 = (probs * size).astype(jnp.float8_e4m3)
    read = p8.astype(jnp.float32) @ values  # -
    # + read = (p8.astype(jnp.float32) @ values) / size
    return read @ params["o"]


def momentum_arguments():
    x = normal(522, 150, 16, 12)
    return (
        "in: 12x24 w @523, w: 24x3 w",
        x,
        np.tanh(x @ weight(525, 12, 3)) + np.float32(1),
    )


@fault("absorption", "coarse", "stagnation")
@source("8-bit optimizers: a slow average in a format of 3 mantissa bits")
@inputs(by=momentum_arguments)
def fp8_momentum_stalls(params, x, y):
    """Heavy-ball SGD whose momentum is stored in FP8 with one scale."""

    def loss_of(w, x, y):
        return jnp.mean((jnp.tanh(x @ params["in"]) @ w - y) ** 2)

    def step(carry, batch):
        w, m8 = carry  # -
        # + w, m = carry
        g = jax.grad(loss_of)(w, *batch)
        m = m8.astype(jnp.float32) / 64.0  # -
        m = m + 0.02 * (g - m)
        m8 = (m * 64.0).astype(jnp.float8_e4m3)  # fault
        return (w - 0.05 * m8.astype(jnp.float32) / 64.0, m8), None  # -
        # + return (w - 0.05 * m, m), None

    start = (params["w"], jnp.zeros(params["w"].shape, jnp.float8_e4m3))  # -
    # + start = (params["w"], jnp.zeros(params["w"].shape))
    (w, m8), _ = jax.lax.scan(step, start, (x, y))  # -
    return w, m8.astype(jnp.float32) / 64.0  # -
    # + (w, m), _ = jax.lax.scan(step, start, (x, y))
    # + return w, m


def depthwise_arguments():
    size = np.geomspace(1e-3, 1.0, 16).astype(np.float32)
    params = {
        "expand": weight(526, 3, 16),
        "depthwise": normal(527, 3, 3, 16) * size,
        "gain": 1 / size,  # batch norm, folded
        "head": weight(528, 16, 5),
    }
    return params, normal(529, 4, 14, 14, 3)


@fault("coarse", "underflow")
@source("Nagel et al., Data-Free Quantization: per-tensor scales and MobileNet")
@inputs(by=depthwise_arguments)
def int8_scale_shared_by_channels(params, images):
    """A depthwise layer in int8 with one scale; the channels' ranges differ."""
    w = params["depthwise"]
    scale = jnp.max(jnp.abs(w)) / 127.0  # -
    # + scale = jnp.max(jnp.abs(w), axis=(0, 1)) / 127.0
    codes = jnp.round(w / scale)  # here
    w = codes.astype(jnp.int8).astype(jnp.float32) * scale
    x = jax.nn.relu(images @ params["expand"])
    pieces = [
        x[:, i : i + 12, j : j + 12] * w[i, j] for i in range(3) for j in range(3)
    ]
    x = sum(pieces) * params["gain"]
    return jax.nn.relu(x).mean((1, 2)) @ params["head"]
