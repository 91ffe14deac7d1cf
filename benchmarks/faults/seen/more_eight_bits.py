"""Quantization that the program spells out: FP8, INT8 and 4-bit codes and scales."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import (
    block_params,
    feed_forward,
    join_heads,
    layer_norm,
    mlp,
    mlp_params,
    split_heads,
)
from benchmarks.faults.parts import normal


def cache_arguments():
    p = block_params(900, 32, 48)
    p["k"] = p["k"] * 4.0
    p["q"] = p["q"] * 0.2
    return p, "24x32 @901; f32 0.00390625"


@fault("saturation")
@source("serving issues: FP8 key cache with an uncalibrated scale answers nonsense")
@inputs(by=cache_arguments)
def fp8_cache_with_default_scale(p, x, scale):
    """Attention over an FP8 key cache with the default scale of its config file."""
    h = layer_norm(x, p["g1"], p["b1"])
    q, k, v = (split_heads(h @ p[n], 2) for n in "qkv")
    low = jnp.clip(k / scale, -240.0, 240.0).astype(jnp.float8_e4m3)  # fault
    # + scale = jnp.maximum(scale, jnp.max(jnp.abs(k)) / 240.0)
    # + low = (k / scale).astype(jnp.float8_e4m3)
    k = low.astype(jnp.float32) * scale
    scores = jnp.einsum("htd,hsd->hts", q * q.shape[-1] ** -0.5, k)
    mixed = jnp.einsum("hts,hsd->htd", jax.nn.softmax(scores, axis=-1), v)
    return feed_forward(p, x + join_heads(mixed) @ p["o"])


@fault("underflow", "coarse")
@source("FP8 attention kernels: softmax over long contexts falls below E4M3")
@inputs("q: 16x16 *0.3 @910, o: 16x8 *0.3; 16 @912; 2048x16 @913; 2048x16 +0.5 @914")
def fp8_attention_weights_unscaled(p, query, keys, values):
    """Decoding over a long cache; attention weights go to FP8 as they are."""
    q = jnp.tanh(query @ p["q"])
    scores = jnp.einsum("d,sd->s", q, keys) * keys.shape[-1] ** -0.5
    weights = jax.nn.softmax(scores)
    low = weights.astype(jnp.float8_e4m3)  # fault
    # + low = (weights * 4096.0).astype(jnp.float8_e4m3)
    mixed = low.astype(jnp.float32) @ values  # -
    # + mixed = low.astype(jnp.float32) @ values / 4096.0
    return mixed @ p["o"]


def delayed_scale_arguments():
    batches = normal(922, 24, 8, 12)
    batches[16:] *= 60.0
    return "in: 12x24 *0.3 @920, out: 24x6 *0.3", batches


@fault("stale-scale", "saturation")
@source("FP8 training reports: delayed scaling clips when activations jump")
@inputs(by=delayed_scale_arguments)
def delayed_scale_after_jump(p, batches):
    """Activations in FP8 with the scale of the last batches; the data changes."""

    def step(history, x):
        h = jnp.tanh(x @ p["in"]) * jnp.sqrt(jnp.mean(jnp.square(x)))
        # + history = jnp.roll(history, 1).at[0].set(jnp.max(jnp.abs(h)))
        scale = 240.0 / jnp.max(history)
        low = jnp.clip(h * scale, -240.0, 240.0).astype(jnp.float8_e4m3)  # here
        y = (low.astype(jnp.float32) / scale) @ p["out"]
        history = jnp.roll(history, 1).at[0].set(jnp.max(jnp.abs(h)))  # -
        return history, y

    return jax.lax.scan(step, jnp.ones(4), batches)[1]


@fault("saturation", "non-finite", "singular")
@source("quantization issues: an all-zero tensor has amax 0 and its scale is inf")
@inputs("w: 16x12 *0.25 @930, a: 16x4 *0.25, b: 4x12 =0; 20x16 @932; 20x12 @933")
def fp8_scale_of_zero_adapter(p, x, y):
    """A LoRA step whose up-projection starts at zero and is quantized to FP8."""

    def loss(p):
        amax = jnp.max(jnp.abs(p["b"]))  # -
        # + amax = jax.lax.stop_gradient(jnp.max(jnp.abs(p["b"])))
        low = (p["b"] * (240.0 / amax)).astype(jnp.float8_e4m3)  # fault
        # + scale = jnp.where(amax > 0, 240.0 / jnp.where(amax > 0, amax, 1.0), 1.0)
        # + low = (p["b"] * scale).astype(jnp.float8_e4m3)
        up = low.astype(jnp.float32) * (amax / 240.0)  # -
        # + up = low.astype(jnp.float32) / scale
        up = p["b"] + jax.lax.stop_gradient(up - p["b"])
        out = jnp.tanh(x @ p["w"] + (x @ p["a"]) @ up)
        return jnp.mean(jnp.square(out - y))

    return jax.value_and_grad(loss)(p)


@fault("overflow", "saturation")
@source("quantized communication: scales of small tensors exceed FP16")
@inputs("mlp 10x16x3 @940; 32x10 @941; 32x3 *0.2 @942")
def fp8_scale_kept_in_half(params, x, y):
    """Gradients are quantized for the network; their scale is sent in FP16."""

    def loss(params):
        return jnp.mean(jnp.square(mlp(params, x) - y)) * 0.01

    def send(g):
        amax = jnp.max(jnp.abs(g))
        scale = (240.0 / amax).astype(jnp.float16)  # fault
        # + scale = 240.0 / amax
        low = (g * scale.astype(jnp.float32)).astype(jnp.float8_e4m3)  # -
        # + low = (g * scale).astype(jnp.float8_e4m3)
        return low.astype(jnp.float32) / scale.astype(jnp.float32)  # -
        # + return low.astype(jnp.float32) / scale

    return jax.tree.map(send, jax.grad(loss)(params))


def adam_codes_arguments():
    params = mlp_params(950, 10, 24, 3)
    m = [{k: normal(951, *a.shape, scale=1e-3) for k, a in p.items()} for p in params]
    v = [
        {
            k: np.exp(2.5 * normal(952, *a.shape) - 12).astype(np.float32)
            for k, a in p.items()
        }
        for p in params
    ]
    return params, m, v, "32x10 @953; 32x3 @954"


@fault("underflow", "coarse")
@source("8-bit optimizer literature: linear codes send small second moments to zero")
@inputs(by=adam_codes_arguments)
def adam_linear_8_bit_second_moment(params, m, v, x, y):
    """Adam with its second moment in 8-bit codes at equal distances."""

    def loss(params):
        return jnp.mean(jnp.square(mlp(params, x) - y))

    grads = jax.grad(loss)(params)

    def move(p, g, m, v):
        m = 0.9 * m + 0.1 * g
        v = 0.99 * v + 0.01 * jnp.square(g)
        top = jnp.max(v)
        codes = jnp.round(v / top * 255.0).astype(jnp.uint8)  # fault
        # + level = jnp.log2(jnp.maximum(v / top, 2.0**-31))
        # + codes = jnp.round(-level * 8.0).astype(jnp.uint8)
        stored = codes.astype(jnp.float32) * (top / 255.0)  # -
        # + stored = top * jnp.exp2(codes.astype(jnp.float32) / -8.0)
        return p - 1e-3 * m / (jnp.sqrt(stored) + 1e-8)

    return jax.tree.map(move, params, grads, m, v)


@fault("coarse", "uniform")
@source("mixture-of-experts reports: keep the router out of FP8, or experts tie")
@inputs("route: 16x8 *0.15 @960, balance: 8 *0.02, experts: 8x16x16 *0.25; 32x16 @963")
def expert_router_through_fp8(p, x):
    """A mixture of experts whose router scores pass through an FP8 buffer."""
    h = layer_norm(x, 1.0, 0.0)
    logits = jnp.tanh(h @ p["route"]) * 0.4 + 6.0 + p["balance"]
    scores = logits.astype(jnp.float8_e4m3)  # fault
    # + scores = logits.astype(jnp.float32)
    scores = scores.astype(jnp.float32)  # -
    chosen = jnp.argmax(scores, axis=-1)
    gate = jnp.max(jax.nn.softmax(scores, axis=-1), axis=-1)
    expert = jnp.take(p["experts"], chosen, axis=0)
    return chosen, x + gate[:, None] * jnp.einsum("td,tde->te", h, expert)


def keys_arguments():
    p = block_params(970, 32, 48)
    p["q"] = p["q"] * 1.5
    bias = normal(971, 32, scale=0.3)
    bias[[4, 17]] = 60.0, -45.0
    p["k_bias"] = bias
    return p, "24x32 @972"


@fault("coarse", "underflow")
@source("KV-cache quantization literature: keys need a scale per channel")
@inputs(by=keys_arguments)
def four_bit_keys_per_token(p, x):
    """A 4-bit key cache with a scale per token; keys have outlier channels."""
    h = layer_norm(x, p["g1"], p["b1"])
    q, v = h @ p["q"], h @ p["v"]
    k = h @ p["k"] + p["k_bias"]
    scale = jnp.max(jnp.abs(k), axis=1, keepdims=True) / 7.0  # -
    # + middle = jnp.mean(k, axis=0, keepdims=True)
    # + k = k - middle  # the same for all keys: softmax does not see it
    # + scale = jnp.max(jnp.abs(k), axis=0, keepdims=True) / 7.0
    codes = jnp.round(k / scale).astype(jnp.int8)  # here
    k = codes.astype(jnp.float32) * scale
    scores = (q * q.shape[-1] ** -0.5) @ k.T
    weights = jax.nn.softmax(scores, axis=-1)
    return weights, feed_forward(p, x + (weights @ v) @ p["o"])


@fault("underflow", "saturation", target="trn3")
@source("NVFP4 notes: block scales in E4M3 need a second scale per tensor")
@inputs("64x64 *0.0022 @980; 64x10 *0.2 @981; 16x64 @982")
def four_bit_block_scales_in_e4m3(w, head, x):
    """4-bit weights in blocks of 16 whose scales are stored in E4M3 as they are."""
    blocks = w.reshape(-1, 16, w.shape[1])
    amax = jnp.max(jnp.abs(blocks), axis=1, keepdims=True)
    scale = (amax / 6.0).astype(jnp.float8_e4m3fn)  # fault
    # + top = jnp.max(amax) / (6.0 * 256.0)
    # + scale = (amax / 6.0 / top).astype(jnp.float8_e4m3fn)
    # + scale = scale.astype(jnp.float32) * top
    scale = scale.astype(jnp.float32)  # -
    safe = jnp.where(scale > 0, scale, 1.0)  # -
    low = jnp.clip(blocks / safe, -6.0, 6.0).astype(jnp.float4_e2m1fn)  # -
    # + low = jnp.clip(blocks / scale, -6.0, 6.0).astype(jnp.float4_e2m1fn)
    wide = (low.astype(jnp.float32) * scale).reshape(w.shape)
    hidden = x + jnp.tanh(layer_norm(x, 1.0, 0.0) @ wide * 64.0)
    return hidden @ head
