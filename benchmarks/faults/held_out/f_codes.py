"""Quantizers written by hand: INT8, FP8, blocks, zero points, noise, caches."""

import jax
import jax.numpy as jnp

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import mlp
from benchmarks.faults.parts import layer_norm


@fault("coarse", "saturation", "underflow", policy="bf16")
@source("INT8 weights with one scale for rows of very different size")
@inputs("24x16 @1; 12x16 w @2; 12 even -7..3; 12x5 w @3")
def one_scale_for_rows_of_all_sizes(x, w, size, head):
    w = w * jnp.exp(size)[:, None]
    top = jnp.max(jnp.abs(w))  # -
    # + top = jnp.max(jnp.abs(w), axis=1, keepdims=True)
    code = jnp.round(w / top * 127.0).astype(jnp.int8)  # here
    short = code.astype(jnp.float32) * top / 127.0
    h = x @ short.T
    scale = jnp.sqrt(jnp.mean(jnp.square(h), axis=0)) + 1e-8
    return h / scale, jax.nn.log_softmax((h / scale) @ head)


@fault("underflow", "saturation", "non-finite", policy="bf16")
@source("scales of rows that are stored in half and are zero for small rows")
@inputs("16x32 @11; 16 even -16..0; 32x8 w @12")
def scales_of_small_rows_in_half(g, size, w):
    g = g * jnp.exp(size)[:, None]
    top = jnp.max(jnp.abs(g), axis=1, keepdims=True)
    scale = (top / 127.0).astype(jnp.float16)  # fault
    # + scale = top / 127.0
    scale = scale.astype(jnp.float32)
    code = jnp.clip(jnp.round(g / scale), -127, 127).astype(jnp.int8)
    kept = code.astype(jnp.float32) * scale
    norm = jnp.sqrt(jnp.sum(kept * kept, axis=1, keepdims=True))
    return kept / (norm + 1e-20), (kept / (norm + 1e-20)) @ w


@fault("overflow", "saturation", "non-finite", policy="bf16")
@source("FP8 caches of keys with one channel of outliers")
@inputs("40x32 @21; 32x16 w @22; 32x16 w @23; 32x32 w @24; 16 =0")
def keys_kept_in_fp8_as_they_are(x, wq, wk, wv, bias):
    h = layer_norm(x)
    k = h @ wk + bias.at[5].set(900.0)
    q = (h @ wq).at[:, 5].mul(0.01)
    top = jnp.ones(16)  # -
    # + top = jnp.max(jnp.abs(k), axis=0) / 200.0
    kept = (k / top).astype(jnp.float8_e4m3)  # here
    scores = q @ (kept.astype(jnp.float32) * top).T / 4.0
    causal = jnp.tril(jnp.ones((40, 40), jnp.float8_e4m3))
    share = jax.nn.softmax(jnp.where(causal.astype(jnp.float32) > 0, scores, -1e9))
    return share, x + share @ (h @ wv)


@fault("absorption", "coarse", "stagnation", policy="bf16")
@source("stochastic rounding whose noise is added in the short format")
@inputs("16x12 70..110 @31; 16x12 0.02..0.1 @32; 96x16x12 0..1 @33; 16x4 w @34")
def stochastic_rounding_with_short_noise(start, push, noise, x):
    start = jnp.round(start)

    def turn(code, u):
        wanted = code.astype(jnp.float32) + push
        noisy = wanted.astype(jnp.bfloat16) + u.astype(jnp.bfloat16)  # fault
        # + noisy = wanted + u
        code = jnp.floor(noisy.astype(jnp.float32))
        return jnp.clip(code, -127.0, 127.0).astype(jnp.int8), None

    code, _ = jax.lax.scan(turn, start.astype(jnp.int8), noise)
    moved = code.astype(jnp.float32) - start
    return jnp.sum(moved, axis=0), jnp.mean(moved), x.T @ moved / 96.0


@fault("singular", "non-finite", policy="mxfp8", target="trn3")
@source("microscaled blocks that are all zeros: the exponent is log2(0)")
@inputs("16x64 @41; 64x12 w @42; 12x4 w @43")
def exponents_of_padded_blocks(x, w, head):
    x = x.at[9:, 32:].set(0.0)
    blocks = x.reshape(16, 2, 32)
    top = jnp.max(jnp.abs(blocks), axis=-1, keepdims=True)
    exponent = jnp.floor(jnp.log2(top)) - 2.0  # fault
    # + exponent = jnp.floor(jnp.log2(jnp.maximum(top, 1e-30))) - 2.0
    scale = jnp.exp2(exponent)
    size = blocks / scale
    step = jnp.exp2(jnp.floor(jnp.log2(jnp.clip(jnp.abs(size), 1.0, 6.0))) - 1.0)
    code = jnp.clip(jnp.round(size / step) * step, -6.0, 6.0)
    kept = (code * scale).reshape(16, 64)
    return kept, jax.nn.gelu(kept @ w) @ head


@fault("integer", policy="bf16")
@source("asymmetric codes whose zero point is kept as a signed byte")
@inputs("24x16 @51; 24 -4..-3 @52; 16x6 w @53")
def zero_points_kept_as_signed_bytes(x, shift, w):
    x = jax.nn.gelu(x) + shift[:, None]
    low = jnp.min(x, axis=1, keepdims=True)
    high = jnp.maximum(jnp.max(x, axis=1, keepdims=True), 0.0)
    step = (high - low) / 255.0
    zero = jnp.round(-low / step).astype(jnp.int32)
    zero = zero.astype(jnp.int8)  # fault
    # + zero = zero.astype(jnp.int16)
    code = jnp.clip(jnp.round((x - low) / step), 0, 255).astype(jnp.uint8)
    kept = (code.astype(jnp.float32) - zero.astype(jnp.float32)) * step
    return kept, jnp.tanh(kept) @ w


@fault("integer", policy="bf16")
@source("INT8 products that are added up in 16 bits")
@inputs("16x64 0..1 @61; 64x12 0..0.2 @62; 12x4 w @63")
def products_of_bytes_added_in_int16(x, w, head):
    left = jnp.max(x) / 127.0
    right = jnp.max(w, axis=0) / 127.0
    a = jnp.round(x / left).astype(jnp.int16)
    b = jnp.round(w / right).astype(jnp.int16)
    products = a[:, :, None] * b[None]
    total = jnp.sum(products, axis=1, dtype=jnp.int16)  # fault
    # + total = jnp.sum(products.astype(jnp.float32), axis=1)
    h = total.astype(jnp.float32) * left * right
    return h, jnp.tanh(0.1 * h) @ head


@fault("saturation", policy="fp32")
@source("ranges from three standard deviations, with outliers that matter")
@inputs("32x48 @71; 48x12 w @72; 12x4 w @73; 32 int 0..4 @74")
def codes_cut_at_three_deviations(x, w, head, labels):
    x = x.at[:, 7].mul(40.0).at[:, 30].add(90.0)
    top = 3.0 * jnp.sqrt(jnp.mean(jnp.square(x)))  # -
    # + top = jnp.max(jnp.abs(x), axis=1, keepdims=True)

    @jax.custom_vjp
    def short(x):
        code = jnp.clip(jnp.round(x / top * 127.0), -127, 127).astype(jnp.int8)  # here
        return code.astype(jnp.float32) * (top / 127.0)

    short.defvjp(lambda x: (short(x), None), lambda _, g: (g,))

    def loss(gain, w, head):
        h = jax.nn.relu(short(x * gain) @ w)
        scores = jax.nn.log_softmax(layer_norm(h) @ head)
        return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1)), h

    whole = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
    (value, h), grads = whole(jnp.ones(48), w, head)
    return value, h, grads


@fault("stale-scale", "overflow", "saturation", policy="bf16")
@source("delayed scaling: gradients that grow a hundredfold between two steps")
@inputs("mlp 10x16x4 @81", "32x10 @82; 32x4 @83; 4 1e-4..3e-4 @84")
def delayed_scale_of_gradients_that_grow(params, x, y, history):
    hidden = jnp.tanh(x @ params[0]["w"] + params[0]["b"])
    error = (mlp(params, x) - y) * 2.0 / 32.0
    top = jnp.max(history)  # -
    # + top = jnp.max(jnp.abs(error))
    scale = 200.0 / top
    sent = jnp.clip(error * scale, -240.0, 240.0).astype(jnp.float8_e4m3)  # here
    g = hidden.T @ (sent.astype(jnp.float32) / scale)
    back = sent.astype(jnp.float32) / scale @ params[1]["w"].T
    back = x.T @ (back * (1.0 - hidden * hidden))
    history = jnp.roll(history, 1).at[0].set(jnp.max(jnp.abs(error)))
    return params[1]["w"] - 0.5 * g, g, back, history


@fault("absorption", "stagnation", "coarse", policy="bf16")
@source("recurrent states that are kept as FP8 between tokens")
@inputs("128x8 0.5..1.5 @91; 128x6 0.5..1.5 @92; 128x8 0..1 @93; 6x4 w @94")
def recurrent_state_between_tokens_in_fp8(k, v, q, out):
    def turn(state, entry):
        key, value, query = entry
        before = 0.999 * state.astype(jnp.float32)
        grown = before + jnp.outer(key, value)
        state = grown.astype(jnp.float8_e4m3)  # fault
        # + state = grown
        read = query @ grown / jnp.sum(query)
        return state, read

    start = jnp.zeros((8, 6), jnp.float8_e4m3)  # -
    # + start = jnp.zeros((8, 6))
    _, reads = jax.lax.scan(turn, start, (k, v, q))
    return reads[-16:], jnp.tanh(0.01 * reads) @ out
