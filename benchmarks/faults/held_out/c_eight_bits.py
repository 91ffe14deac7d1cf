"""Codes of eight and four bits, their scales and their exponents."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import layer_norm, normal


@fault("integer")
@source("unpacking of 4-bit checkpoints")
@inputs(
    lambda: np.random.default_rng(9700).integers(0, 256, (16, 24)).astype(np.uint8),
    lambda: 0.02 + 0.01 * np.abs(normal(9701, 24)),
    "10x32 @9702; 24x6 w @9703",
)
def nibbles_centred_in_uint8(packed, scale, x, head):
    """Weights of an AWQ checkpoint: two codes a byte, eight is zero."""
    codes = jnp.stack([packed & 15, packed >> 4], axis=1) - jnp.uint8(8)  # fault
    # + codes = jnp.stack([packed & 15, packed >> 4], axis=1).astype(jnp.int8) - 8
    codes = codes.reshape(-1, packed.shape[-1]).astype(jnp.float32)
    h = layer_norm(x) @ (codes * scale)
    return jax.nn.silu(h) @ head


def exponents_arguments():
    rng = np.random.default_rng(9710)
    levels = np.array([-4, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 4], np.float32)
    codes = rng.choice(levels, (8, 4, 32))
    weights = rng.choice(levels, (4, 32, 12))
    exponents = rng.integers(127, 132, (8, 4)).astype(np.uint8)
    weight_exponents = rng.integers(120, 126, (4, 12)).astype(np.uint8)
    return codes, exponents, weights, weight_exponents, "12 @9711"


@fault("integer")
@source("own kernels for microscaled products with E8M0 scales")
@inputs(by=exponents_arguments)
def block_exponents_added_in_uint8(codes, exponents, weights, weight_exponents, bias):
    """A product of MX blocks: the codes' sum, and the sum of biased exponents."""
    sums = jnp.einsum("tbk,bkf->tbf", codes, weights)
    both = exponents[:, :, None] + weight_exponents[None]  # fault
    # + both = exponents[:, :, None].astype(jnp.int32) + weight_exponents[None]
    scale = jnp.exp2(both.astype(jnp.float32) - 254.0)
    return jax.nn.gelu(jnp.sum(sums * scale, axis=1) + bias)


@fault("saturation", policy="mxfp4", target="trn3")
@source("abs and max in the wrong order in a quantizer")
# Some channels are far below zero, as those of residual streams are.
@inputs("in: 24x32 w @9720, bias: 32 =0 [3::7]=-25, out: 32x8 w; 16x24 @9722")
def scale_from_largest_signed_value(params, x):
    """FP8 activations whose scale comes from the largest value, sign and all."""
    h = layer_norm(x) @ params["in"] + params["bias"]
    scale = jnp.abs(jnp.max(h)) / 240.0  # -
    # + scale = jnp.max(jnp.abs(h)) / 240.0
    codes = jnp.clip(h / scale, -240.0, 240.0).astype(jnp.float8_e4m3)  # here
    return (codes.astype(jnp.float32) @ params["out"]) * scale


@fault("saturation", "stale-scale", policy="mxfp8", target="trn3")
@source("observers placed on the wrong side of an addition")
@inputs("in: 24x32 w @9730, out: 32x8 w, bias: 32 *12; 16x24 @9733")
def scale_measured_before_the_bias(params, x):
    """The scale is measured on a product, the codes are made after the bias."""
    h = layer_norm(x)
    product = h @ params["in"]  # -
    scale = jnp.max(jnp.abs(product), axis=-1, keepdims=True) / 127.0  # -
    moved = product + params["bias"]  # -
    # + moved = h @ params["in"] + params["bias"]
    # + scale = jnp.max(jnp.abs(moved), axis=-1, keepdims=True) / 127.0
    codes = jnp.clip(jnp.round(moved / scale), -127, 127).astype(jnp.int8)  # here
    return jnp.tanh(codes.astype(jnp.float32) * scale * 0.05) @ params["out"]


@fault("stale-scale", "saturation")
@source("adapters served on FP8 checkpoints with static activation scales")
@inputs(
    "in: 24x48 w @9740, out: 48x8 w",
    ("3x24x4 @9742", "3x4x48 *1.2 @9743"),
    "12x24 @9744",
    np.float32(3.5 / 240.0),
)
def adapter_under_scale_of_base_model(params, adapters, x, scale):
    """Serving with adapters: the scale of activations is the base model's."""

    def answer(adapter):
        a, b = adapter
        h = layer_norm(x)
        h = jax.nn.silu(h @ params["in"] + (h @ a) @ b)
        codes = jnp.clip(h / scale, -240.0, 240.0).astype(jnp.float8_e4m3)  # fault
        # + own = jnp.maximum(scale, jnp.max(jnp.abs(h)) / 240.0)
        # + codes = jnp.clip(h / own, -240.0, 240.0).astype(jnp.float8_e4m3)
        return (codes.astype(jnp.float32) * scale) @ params["out"]  # -
        # + return (codes.astype(jnp.float32) * own) @ params["out"]

    return jax.vmap(answer)(adapters)


def codes_arguments():
    """Later tokens are larger."""
    growth = np.linspace(0.4, 3.0, 40, dtype=np.float32)[:, None]
    return "q k v: 16x16 w*0.5 @9750", normal(9755, 40, 16) * growth


@fault("stale-scale")
@source("FP8 caches whose scale is updated without requantizing")
@inputs(by=codes_arguments)
def old_codes_read_with_grown_scale(params, tokens):
    """An FP8 cache with a scale that grows; old codes are read with the new one."""

    def write(carry, x):
        cache, largest, place = carry  # -
        # + cache, scales, largest, place = carry
        k = x @ params["k"]
        largest = jnp.maximum(largest, jnp.max(jnp.abs(k)))
        code = (k * (240.0 / largest)).astype(jnp.float8_e4m3)
        return (
            cache.at[place].set(code.astype(jnp.float32)),
            largest,
            place + 1,
        ), None  # -
        # + cache = cache.at[place].set(code.astype(jnp.float32))
        # + return (
        # +     cache,
        # +     scales.at[place].set(largest / 240.0),
        # +     largest,
        # +     place + 1,
        # + ), None

    start = jnp.zeros((tokens.shape[0], params["k"].shape[1])), 1e-3, 0  # -
    # + n = tokens.shape[0]
    # + start = jnp.zeros((n, params["k"].shape[1])), jnp.zeros(n), 1e-3, 0
    (cache, largest, _), _ = jax.lax.scan(write, start, tokens)  # -
    keys = cache * (largest / 240.0)  # fault
    # + (cache, scales, _, _), _ = jax.lax.scan(write, start, tokens)
    # + keys = cache * scales[:, None]
    scores = (tokens[-1] @ params["q"]) @ keys.T * keys.shape[-1] ** -0.5
    return jax.nn.softmax(scores) @ (tokens @ params["v"])


@fault("underflow", "coarse", policy="fp8")
@source("reports of accuracy lost with FP8 caches and a scale of one")
@inputs(
    "down: 32x8 w*0.0005 @9760, up_k: 8x32 w*2000, up_v: 8x32 w*2000, "
    "q: 32x32 w; 24x32 @9764"
)
def latent_cache_in_e4m3_without_scale(params, x):
    """Latent attention: the compressed cache is E4M3, and its scale is one."""
    h = layer_norm(x)
    latent = h @ params["down"]
    cache = latent.astype(jnp.float8_e4m3).astype(jnp.float32)  # fault
    # + scale = jnp.max(jnp.abs(latent)) / 240.0
    # + cache = (latent / scale).astype(jnp.float8_e4m3).astype(jnp.float32) * scale
    k, v = cache @ params["up_k"], cache @ params["up_v"]
    scores = h @ params["q"] @ k.T * k.shape[-1] ** -0.5
    return jax.nn.softmax(scores) @ v
