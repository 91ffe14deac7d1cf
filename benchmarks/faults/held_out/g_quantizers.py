"""Quantizers that are written by hand, and small formats in pictures."""

import jax
import jax.numpy as jnp

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import convolution, layer_norm


@fault("coarse", "underflow", "saturation", policy="bf16")
@source("one scale for a weight matrix with an outlier channel")
@inputs("16x48 @1; 48x24 w @2; f32 200")
def one_scale_for_all_channels(x, w, outlier):
    w = w.at[:, 5].multiply(outlier)
    scale = jnp.max(jnp.abs(w)) / 127.0  # -
    # + scale = jnp.max(jnp.abs(w), axis=0) / 127.0
    codes = jnp.round(w / scale).astype(jnp.int8)  # here
    return jnp.tanh(layer_norm(x) @ codes.astype(jnp.float32) * scale)


@fault("underflow", policy="bf16")
@source("FP8 casts in front of the scale instead of behind")
@inputs("32x24 *2e-4 @11; 24x12 w @12; 32x12 *2e-4 @13")
def cast_before_the_scale(x, w, y):
    scale = 240.0 / jnp.max(jnp.abs(x))
    codes = x.astype(jnp.float8_e4m3).astype(jnp.float32) * scale  # fault
    # + codes = (x * scale).astype(jnp.float8_e4m3).astype(jnp.float32)

    def loss(w):
        return jnp.sum(jnp.square((codes @ w) / scale - y))

    return (codes @ w) / scale, jax.grad(loss)(w)


@fault("overflow", "saturation", "non-finite", policy="fp32", target="trn3")
@source("MX blocks by hand: the exponent of the block's maximum, rounded down")
@inputs("16x128 @21; 128x8 w @22; 16 0.1..9 @23")
def exponent_of_a_block_rounded_down(x, w, gain):
    blocks = (x * gain[:, None]).reshape(16, 4, 32)
    top = jnp.max(jnp.abs(blocks), axis=-1, keepdims=True)
    scale = jnp.exp2(jnp.floor(jnp.log2(top)) - 8.0)  # -
    # + scale = jnp.exp2(jnp.ceil(jnp.log2(top / 448.0)))
    codes = (blocks / scale).astype(jnp.float8_e4m3fn)  # here
    return (codes.astype(jnp.float32) * scale).reshape(16, 128) @ w


@fault("integer", policy="fp32")
@source("INT8 products that are added in INT16")
@inputs("12x256 +0.8 @31; 256x8 +0.4 @32")
def products_of_codes_in_short_sums(x, w):
    x_scale, w_scale = jnp.max(jnp.abs(x)) / 127.0, jnp.max(jnp.abs(w)) / 127.0
    a = jnp.round(x / x_scale).astype(jnp.int16)
    b = jnp.round(w / w_scale).astype(jnp.int16)
    total = jnp.sum(a[:, :, None] * b, axis=1, dtype=jnp.int16)  # fault
    # + total = jnp.sum((a[:, :, None] * b).astype(jnp.int32), axis=1)
    return total.astype(jnp.float32) * (x_scale * w_scale)


@fault("stale-scale", "saturation", policy="bf16")
@source("delayed scaling of gradients after a spike of the loss")
@inputs("48x24 @41; 24x16 w @42; 48x16 *30 @43; 16 0.01..0.05 @44")
def gradients_with_the_scale_of_calmer_steps(x, w, y, history):
    error = x @ w - y
    g = 2.0 * error / error.size
    scale = 57344.0 / jnp.max(history)  # -
    # + scale = 57344.0 / jnp.max(jnp.abs(g))
    codes = jnp.clip(g * scale, -57344.0, 57344.0).astype(jnp.float8_e5m2)  # here
    grad = x.T @ (codes.astype(jnp.float32) / scale)
    return jnp.mean(jnp.square(error)), w - 0.5 * grad


@fault("saturation", "non-finite", "singular", policy="bf16")
@source("scales of blocks that are all zero")
@inputs("8x64 @51; 64x8 w @52; 8 int 20..64 @53")
def scale_of_a_block_of_padding(x, w, length):
    x = jnp.where(jnp.arange(64) < length[:, None], x, 0.0)
    blocks = x.reshape(8, 4, 16)
    top = jnp.max(jnp.abs(blocks), axis=-1, keepdims=True)
    scale = 240.0 / top  # fault
    # + scale = 240.0 / jnp.where(top > 0, top, 1.0)
    codes = (blocks * scale).astype(jnp.float8_e4m3)
    return (codes.astype(jnp.float32) / scale).reshape(8, 64) @ w


@fault("underflow", "non-finite", "absorption", policy="fp16")
@source("Dice losses under FP16 with the smoothing of FP32")
@inputs("6x12x12x2 @81; 3x3x2x1 *0.3 @82; 6x12x12x1 0..1 @83")
def smoothing_of_dice_in_half(images, kernel, drawn):
    empty = (jnp.arange(6) % 3 == 0).reshape(6, 1, 1, 1)
    masks = jnp.where(empty, 0.0, jnp.round(drawn))
    shown = jnp.where(empty, 0.0, jax.nn.sigmoid(convolution(images, kernel)))
    both = jnp.sum(shown * masks, (1, 2, 3)).astype(jnp.float16)
    each = jnp.sum(shown + masks, (1, 2, 3)).astype(jnp.float16)
    # + both, each = both.astype(jnp.float32), each.astype(jnp.float32)
    share = (2.0 * both + 1e-8) / (each + 1e-8)  # here
    return jnp.mean(1.0 - share.astype(jnp.float32))
