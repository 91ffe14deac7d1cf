"""Quantization that the program spells out: FP8, INT8 and 4-bit codes and scales."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.common import (
    block_params,
    feed_forward,
    join_heads,
    layer_norm,
    mlp,
    mlp_params,
    normal,
    split_heads,
)


def cache_static_scale(p, x, scale):
    """Attention over an FP8 key cache with the default scale of its config file."""
    h = layer_norm(x, p["g1"], p["b1"])
    q, k, v = (split_heads(h @ p[n], 2) for n in "qkv")
    low = jnp.clip(k / scale, -240.0, 240.0).astype(jnp.float8_e4m3)  # fault
    k = low.astype(jnp.float32) * scale
    scores = jnp.einsum("htd,hsd->hts", q * q.shape[-1] ** -0.5, k)
    mixed = jnp.einsum("hts,hsd->htd", jax.nn.softmax(scores, axis=-1), v)
    return feed_forward(p, x + join_heads(mixed) @ p["o"])


def cache_measured_scale(p, x, scale):
    h = layer_norm(x, p["g1"], p["b1"])
    q, k, v = (split_heads(h @ p[n], 2) for n in "qkv")
    scale = jnp.maximum(scale, jnp.max(jnp.abs(k)) / 240.0)
    low = (k / scale).astype(jnp.float8_e4m3)
    k = low.astype(jnp.float32) * scale
    scores = jnp.einsum("htd,hsd->hts", q * q.shape[-1] ** -0.5, k)
    mixed = jnp.einsum("hts,hsd->htd", jax.nn.softmax(scores, axis=-1), v)
    return feed_forward(p, x + join_heads(mixed) @ p["o"])


def cache_arguments():
    p = block_params(900, 32, 48)
    p["k"] = p["k"] * 4.0
    p["q"] = p["q"] * 0.2
    return p, normal(901, 24, 32), np.float32(2**-8)


def probabilities_unscaled(p, query, keys, values):
    """Decoding over a long cache; attention weights go to FP8 as they are."""
    q = jnp.tanh(query @ p["q"])
    scores = jnp.einsum("d,sd->s", q, keys) * keys.shape[-1] ** -0.5
    weights = jax.nn.softmax(scores)
    low = weights.astype(jnp.float8_e4m3)  # fault
    mixed = low.astype(jnp.float32) @ values
    return mixed @ p["o"]


def probabilities_scaled(p, query, keys, values):
    q = jnp.tanh(query @ p["q"])
    scores = jnp.einsum("d,sd->s", q, keys) * keys.shape[-1] ** -0.5
    weights = jax.nn.softmax(scores)
    low = (weights * 4096.0).astype(jnp.float8_e4m3)
    mixed = low.astype(jnp.float32) @ values / 4096.0
    return mixed @ p["o"]


def probabilities_arguments():
    p = {"q": normal(910, 16, 16, scale=0.3), "o": normal(911, 16, 8, scale=0.3)}
    return p, normal(912, 16), normal(913, 2048, 16), normal(914, 2048, 16, shift=0.5)


def delayed_scale_old(p, batches):
    """Activations in FP8 with the scale of the last batches; the data changes."""

    def step(history, x):
        h = jnp.tanh(x @ p["in"]) * jnp.sqrt(jnp.mean(jnp.square(x)))
        scale = 240.0 / jnp.max(history)
        low = jnp.clip(h * scale, -240.0, 240.0).astype(jnp.float8_e4m3)  # fault
        y = (low.astype(jnp.float32) / scale) @ p["out"]
        history = jnp.roll(history, 1).at[0].set(jnp.max(jnp.abs(h)))
        return history, y

    return jax.lax.scan(step, jnp.ones(4), batches)[1]


def delayed_scale_current(p, batches):
    def step(history, x):
        h = jnp.tanh(x @ p["in"]) * jnp.sqrt(jnp.mean(jnp.square(x)))
        history = jnp.roll(history, 1).at[0].set(jnp.max(jnp.abs(h)))
        scale = 240.0 / jnp.max(history)
        low = jnp.clip(h * scale, -240.0, 240.0).astype(jnp.float8_e4m3)
        y = (low.astype(jnp.float32) / scale) @ p["out"]
        return history, y

    return jax.lax.scan(step, jnp.ones(4), batches)[1]


def delayed_scale_arguments():
    p = {"in": normal(920, 12, 24, scale=0.3), "out": normal(921, 24, 6, scale=0.3)}
    batches = normal(922, 24, 8, 12)
    batches[16:] *= 60.0
    return p, batches


def scale_of_zeros(p, x, y):
    """A LoRA step whose up-projection starts at zero and is quantized to FP8."""

    def loss(p):
        amax = jnp.max(jnp.abs(p["b"]))
        low = (p["b"] * (240.0 / amax)).astype(jnp.float8_e4m3)  # fault
        up = low.astype(jnp.float32) * (amax / 240.0)
        up = p["b"] + jax.lax.stop_gradient(up - p["b"])
        out = jnp.tanh(x @ p["w"] + (x @ p["a"]) @ up)
        return jnp.mean(jnp.square(out - y))

    return jax.value_and_grad(loss)(p)


def scale_of_zeros_guarded(p, x, y):
    def loss(p):
        amax = jax.lax.stop_gradient(jnp.max(jnp.abs(p["b"])))
        scale = jnp.where(amax > 0, 240.0 / jnp.where(amax > 0, amax, 1.0), 1.0)
        low = (p["b"] * scale).astype(jnp.float8_e4m3)
        up = low.astype(jnp.float32) / scale
        up = p["b"] + jax.lax.stop_gradient(up - p["b"])
        out = jnp.tanh(x @ p["w"] + (x @ p["a"]) @ up)
        return jnp.mean(jnp.square(out - y))

    return jax.value_and_grad(loss)(p)


def scale_of_zeros_arguments():
    p = {
        "w": normal(930, 16, 12, scale=0.25),
        "a": normal(931, 16, 4, scale=0.25),
        "b": np.zeros((4, 12), np.float32),
    }
    return p, normal(932, 20, 16), normal(933, 20, 12)


def scale_in_half(params, x, y):
    """Gradients are quantized for the network; their scale is sent in FP16."""

    def loss(params):
        return jnp.mean(jnp.square(mlp(params, x) - y)) * 0.01

    def send(g):
        amax = jnp.max(jnp.abs(g))
        scale = (240.0 / amax).astype(jnp.float16)  # fault
        low = (g * scale.astype(jnp.float32)).astype(jnp.float8_e4m3)
        return low.astype(jnp.float32) / scale.astype(jnp.float32)

    return jax.tree.map(send, jax.grad(loss)(params))


def scale_in_fp32(params, x, y):
    def loss(params):
        return jnp.mean(jnp.square(mlp(params, x) - y)) * 0.01

    def send(g):
        amax = jnp.max(jnp.abs(g))
        scale = 240.0 / amax
        low = (g * scale).astype(jnp.float8_e4m3)
        return low.astype(jnp.float32) / scale

    return jax.tree.map(send, jax.grad(loss)(params))


def scale_in_half_arguments():
    x = normal(941, 32, 10)
    return mlp_params(940, 10, 16, 3), x, normal(942, 32, 3, scale=0.2)


def adam_linear_codes(params, m, v, x, y):
    """Adam with its second moment in 8-bit codes at equal distances."""

    def loss(params):
        return jnp.mean(jnp.square(mlp(params, x) - y))

    grads = jax.grad(loss)(params)

    def move(p, g, m, v):
        m = 0.9 * m + 0.1 * g
        v = 0.99 * v + 0.01 * jnp.square(g)
        top = jnp.max(v)
        codes = jnp.round(v / top * 255.0).astype(jnp.uint8)  # fault
        stored = codes.astype(jnp.float32) * (top / 255.0)
        return p - 1e-3 * m / (jnp.sqrt(stored) + 1e-8)

    return jax.tree.map(move, params, grads, m, v)


def adam_log_codes(params, m, v, x, y):
    def loss(params):
        return jnp.mean(jnp.square(mlp(params, x) - y))

    grads = jax.grad(loss)(params)

    def move(p, g, m, v):
        m = 0.9 * m + 0.1 * g
        v = 0.99 * v + 0.01 * jnp.square(g)
        top = jnp.max(v)
        level = jnp.log2(jnp.maximum(v / top, 2.0**-31))
        codes = jnp.round(-level * 8.0).astype(jnp.uint8)
        stored = top * jnp.exp2(codes.astype(jnp.float32) / -8.0)
        return p - 1e-3 * m / (jnp.sqrt(stored) + 1e-8)

    return jax.tree.map(move, params, grads, m, v)


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
    return params, m, v, normal(953, 32, 10), normal(954, 32, 3)


def router_in_fp8(p, x):
    """A mixture of experts whose router scores pass through an FP8 buffer."""
    h = layer_norm(x, 1.0, 0.0)
    logits = jnp.tanh(h @ p["route"]) * 0.4 + 6.0 + p["balance"]
    scores = logits.astype(jnp.float8_e4m3)  # fault
    scores = scores.astype(jnp.float32)
    chosen = jnp.argmax(scores, axis=-1)
    gate = jnp.max(jax.nn.softmax(scores, axis=-1), axis=-1)
    expert = jnp.take(p["experts"], chosen, axis=0)
    return chosen, x + gate[:, None] * jnp.einsum("td,tde->te", h, expert)


def router_in_fp32(p, x):
    h = layer_norm(x, 1.0, 0.0)
    logits = jnp.tanh(h @ p["route"]) * 0.4 + 6.0 + p["balance"]
    scores = logits.astype(jnp.float32)
    chosen = jnp.argmax(scores, axis=-1)
    gate = jnp.max(jax.nn.softmax(scores, axis=-1), axis=-1)
    expert = jnp.take(p["experts"], chosen, axis=0)
    return chosen, x + gate[:, None] * jnp.einsum("td,tde->te", h, expert)


def router_arguments():
    p = {
        "route": normal(960, 16, 8, scale=0.15),
        "balance": normal(961, 8, scale=0.02),
        "experts": normal(962, 8, 16, 16, scale=0.25),
    }
    return p, normal(963, 32, 16)


def keys_per_token(p, x):
    """A 4-bit key cache with a scale per token; keys have outlier channels."""
    h = layer_norm(x, p["g1"], p["b1"])
    q, v = h @ p["q"], h @ p["v"]
    k = h @ p["k"] + p["k_bias"]
    scale = jnp.max(jnp.abs(k), axis=1, keepdims=True) / 7.0
    codes = jnp.round(k / scale).astype(jnp.int8)  # fault
    k = codes.astype(jnp.float32) * scale
    scores = (q * q.shape[-1] ** -0.5) @ k.T
    weights = jax.nn.softmax(scores, axis=-1)
    return weights, feed_forward(p, x + (weights @ v) @ p["o"])


def keys_per_channel(p, x):
    h = layer_norm(x, p["g1"], p["b1"])
    q, v = h @ p["q"], h @ p["v"]
    k = h @ p["k"] + p["k_bias"]
    middle = jnp.mean(k, axis=0, keepdims=True)
    k = k - middle  # the same for all keys: softmax does not see it
    scale = jnp.max(jnp.abs(k), axis=0, keepdims=True) / 7.0
    codes = jnp.round(k / scale).astype(jnp.int8)
    k = codes.astype(jnp.float32) * scale
    scores = (q * q.shape[-1] ** -0.5) @ k.T
    weights = jax.nn.softmax(scores, axis=-1)
    return weights, feed_forward(p, x + (weights @ v) @ p["o"])


def keys_arguments():
    p = block_params(970, 32, 48)
    p["q"] = p["q"] * 1.5
    bias = normal(971, 32, scale=0.3)
    bias[[4, 17]] = 60.0, -45.0
    p["k_bias"] = bias
    return p, normal(972, 24, 32)


def block_scales_in_fp8(w, head, x):
    """4-bit weights in blocks of 16 whose scales are stored in E4M3 as they are."""
    blocks = w.reshape(-1, 16, w.shape[1])
    amax = jnp.max(jnp.abs(blocks), axis=1, keepdims=True)
    scale = (amax / 6.0).astype(jnp.float8_e4m3fn)  # fault
    scale = scale.astype(jnp.float32)
    safe = jnp.where(scale > 0, scale, 1.0)
    low = jnp.clip(blocks / safe, -6.0, 6.0).astype(jnp.float4_e2m1fn)
    wide = (low.astype(jnp.float32) * scale).reshape(w.shape)
    hidden = x + jnp.tanh(layer_norm(x, 1.0, 0.0) @ wide * 64.0)
    return hidden @ head


def block_scales_two_levels(w, head, x):
    blocks = w.reshape(-1, 16, w.shape[1])
    amax = jnp.max(jnp.abs(blocks), axis=1, keepdims=True)
    top = jnp.max(amax) / (6.0 * 256.0)
    scale = (amax / 6.0 / top).astype(jnp.float8_e4m3fn)
    scale = scale.astype(jnp.float32) * top
    low = jnp.clip(blocks / scale, -6.0, 6.0).astype(jnp.float4_e2m1fn)
    wide = (low.astype(jnp.float32) * scale).reshape(w.shape)
    hidden = x + jnp.tanh(layer_norm(x, 1.0, 0.0) @ wide * 64.0)
    return hidden @ head


def block_scales_arguments():
    w = normal(980, 64, 64, scale=0.0022)
    return w, normal(981, 64, 10, scale=0.2), normal(982, 16, 64)


FAULTS = (
    Fault(
        name="fp8-cache-with-default-scale",
        kinds=("saturation",),
        faulty=cache_static_scale,
        healthy=cache_measured_scale,
        arguments=cache_arguments,
        policy="bf16",
        source=(
            "serving issues: FP8 key cache with an uncalibrated scale answers nonsense"
        ),
    ),
    Fault(
        name="fp8-attention-weights-unscaled",
        kinds=("underflow", "coarse"),
        faulty=probabilities_unscaled,
        healthy=probabilities_scaled,
        arguments=probabilities_arguments,
        policy="bf16",
        source="FP8 attention kernels: softmax over long contexts falls below E4M3",
    ),
    Fault(
        name="delayed-scale-after-jump",
        kinds=("stale-scale", "saturation"),
        faulty=delayed_scale_old,
        healthy=delayed_scale_current,
        arguments=delayed_scale_arguments,
        policy="bf16",
        source="FP8 training reports: delayed scaling clips when activations jump",
    ),
    Fault(
        name="fp8-scale-of-zero-adapter",
        kinds=("saturation", "non-finite", "singular"),
        faulty=scale_of_zeros,
        healthy=scale_of_zeros_guarded,
        arguments=scale_of_zeros_arguments,
        policy="bf16",
        source=(
            "quantization issues: an all-zero tensor has amax 0 and its scale is inf"
        ),
    ),
    Fault(
        name="fp8-scale-kept-in-half",
        kinds=("overflow", "saturation"),
        faulty=scale_in_half,
        healthy=scale_in_fp32,
        arguments=scale_in_half_arguments,
        policy="bf16",
        source="quantized communication: scales of small tensors exceed FP16",
    ),
    Fault(
        name="adam-linear-8-bit-second-moment",
        kinds=("underflow", "coarse"),
        faulty=adam_linear_codes,
        healthy=adam_log_codes,
        arguments=adam_codes_arguments,
        policy="bf16",
        source=(
            "8-bit optimizer literature: linear codes send small second moments to zero"
        ),
    ),
    Fault(
        name="expert-router-through-fp8",
        kinds=("coarse", "uniform"),
        faulty=router_in_fp8,
        healthy=router_in_fp32,
        arguments=router_arguments,
        policy="bf16",
        source="mixture-of-experts reports: keep the router out of FP8, or experts tie",
    ),
    Fault(
        name="four-bit-keys-per-token",
        kinds=("coarse", "underflow"),
        faulty=keys_per_token,
        healthy=keys_per_channel,
        arguments=keys_arguments,
        policy="bf16",
        source="KV-cache quantization literature: keys need a scale per channel",
    ),
    Fault(
        name="four-bit-block-scales-in-e4m3",
        kinds=("underflow", "saturation"),
        faulty=block_scales_in_fp8,
        healthy=block_scales_two_levels,
        arguments=block_scales_arguments,
        policy="bf16",
        target="trn3",
        source="NVFP4 notes: block scales in E4M3 need a second scale per tensor",
    ),
)
